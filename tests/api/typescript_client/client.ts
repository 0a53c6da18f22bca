// A turn that waits, is found and answered, by the types that openapi-typescript makes of the document.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { argv: string[] };
const [url, app] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: url });
const path = { app_name: app, user_id: "ann", session_id: "from-typescript" };
const found = <T>(answer: { data?: T; error?: unknown }): T => {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
};

const apps = found(await client.GET("/list-apps", { params: { query: { detailed: true } } }));
if (Array.isArray(apps) || apps.apps[0]?.rootAgentName !== "clerk") throw new Error(JSON.stringify(apps));
found(await client.POST("/apps/{app_name}/users/{user_id}/sessions", { params: { path }, body: { sessionId: "from-typescript" } }));
const newMessage = { role: "user", parts: [{ text: "ask" }] };
const events = found(await client.POST("/run", { body: { appName: app, userId: "ann", sessionId: "from-typescript", newMessage } }));
const waiting = events.flatMap((event) => event.longRunningToolIds ?? []);
const { calls } = found(await client.GET("/v1/apps/{app_name}/users/{user_id}/sessions/{session_id}/pending", { params: { path } }));
const [call] = calls;
if (!call || !waiting.includes(call.id)) throw new Error(JSON.stringify(calls));
const taken = found(
  await client.POST("/v1/apps/{app_name}/users/{user_id}/sessions/{session_id}/pending/{call_id}/answer", {
    params: { path: { ...path, call_id: call.id } },
    body: { response: { ok: true } },
  }),
);
console.log(JSON.stringify({ tool: call.name, invocation: taken.invocation.id }));
