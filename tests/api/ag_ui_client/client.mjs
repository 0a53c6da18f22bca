// Does what the lines of its input say with AG-UI's own client, and prints what the client then knows, a line each.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

const [url, threadId] = process.argv.slice(2);
let agent = new HttpAgent({ url, threadId });

async function run(parameters) {
  const told = { results: [], error: null };
  try {
    await agent.runAgent(parameters, {
      onToolCallResultEvent: ({ event }) => void told.results.push(event.content),
      onRunErrorEvent: ({ event }) => void (told.error = event.message),
    });
  } catch (error) {
    told.error ??= String(error);
  }
  return told;
}

const deeds = {
  say: ({ text, id }) => {
    agent.addMessage({ id, role: "user", content: text });
    return run({});
  },
  resume: ({ payload }) =>
    run({ resume: agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload })) }),
  // As a page that is loaded again: it knows its thread, and nothing else.
  reload: () => {
    agent = new HttpAgent({ url, threadId });
    return run({});
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { deed, ...parameters } = JSON.parse(line);
  const told = await deeds[deed](parameters);
  const { messages, state, pendingInterrupts } = agent;
  console.log(JSON.stringify({ ...told, messages, state, pendingInterrupts }));
}
