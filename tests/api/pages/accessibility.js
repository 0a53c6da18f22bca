// Returns what breaks the rules: names of inputs, order of headings, ids, landmarks, contrast of texts and edges.
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const input of all("input:not([type=hidden]), select, textarea")) {
    if (!input.labels.length) wrong.push(`no label: ${input.outerHTML.slice(0, 80)}`);
    for (const id of (input.getAttribute("aria-describedby") || "").split(" ").filter(Boolean))
      if (!document.getElementById(id)) wrong.push(`described by nothing: ${id}`);
  }
  for (const button of all("button, a")) if (!button.textContent.trim()) wrong.push(`no text: ${button.outerHTML}`);
  for (const named of all("[aria-labelledby]"))
    if (!document.getElementById(named.getAttribute("aria-labelledby"))) wrong.push(`no label: ${named.className}`);
  for (const group of all("fieldset")) if (!group.querySelector("legend")) wrong.push("a fieldset without a legend");
  let level = 0;
  for (const heading of all("h1, h2, h3, h4")) {
    const found = Number(heading.tagName[1]);
    if (found > level + 1) wrong.push(`${heading.tagName} after h${level}: ${heading.textContent}`);
    level = found;
  }
  if (all("h1").length !== 1) wrong.push(`${all("h1").length} h1`);
  if (all("main").length !== 1 || !document.documentElement.lang || !document.title) wrong.push("no main, language or title");
  const ids = all("[id]").map((one) => one.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push(`twice: ${id}`);
  for (const table of all("table")) if (!table.querySelector("th[scope]")) wrong.push("a table without heads");

  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const rgb = (color) => color.match(/[0-9.]+/g).map(Number);
  const luminance = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (first, second) => {
    const [high, low] = [luminance(first), luminance(second)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  for (const list of all(".new")) list.classList.remove("new");
  for (const one of all("body *")) {
    const says = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!says || !one.checkVisibility() || one.tagName === "OPTION") continue;
    const ratio = contrast(rgb(getComputedStyle(one).color), behind(one));
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${one.tagName}.${one.className} ${one.textContent.slice(0, 30)}`);
  }
  for (const input of all("input[type=text], select, textarea")) {
    const ratio = contrast(rgb(getComputedStyle(input).borderTopColor), behind(input.parentElement));
    if (ratio < 3) wrong.push(`edge ${ratio.toFixed(2)}: ${input.name}`);
  }
  return wrong;
}
