"use strict";
(() => {
  const CHUNK = 48; // cards that are added at a time
  const TINY = 40; // images up to this many pixels wide are enlarged without smoothing
  const VERDICTS = { r: "right", w: "wrong", u: "unsure" };
  const SHOWN = { right: "✓ right", wrong: "✗ wrong", unsure: "? unsure" };

  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const all = data.suspects;
  const total = all.given.length;
  const grid = byId("grid");
  const slider = byId("cut");

  // ------------------------------------------------------------------------------------------------------- elements

  // Names may contain anything. Characters that reverse, hide or break text are shown as their codes.
  const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]/gu;
  const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  const visible = (name) => String(name).replace(CONTROLS, (c) => ESCAPES[c] || escaped(c.charCodeAt(0)));

  function escaped(code) {
    const byte = code >= 0xdc80 && code <= 0xdcff ? code - 0xdc00 : code; // a name's byte that is no UTF-8
    return byte < 0x100 ? "\\x" + byte.toString(16).padStart(2, "0") : "\\u" + byte.toString(16).padStart(4, "0");
  }

  const count = (n) => n.toLocaleString("en");
  const percent = (share) => (share === null ? "–" : Math.round(100 * share) + "\u202f%");
  const className = (k) => visible(data.classes[k]);

  function make(tag, properties, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name in node && !name.startsWith("aria-")) node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  function bar(share) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const filled = document.createElementNS(space, "rect");
    for (const [name, value] of [["viewBox", "0 0 100 1"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    filled.setAttribute("width", (100 * Math.min(Math.max(share, 0), 1)).toFixed(1));
    filled.setAttribute("height", "1");
    svg.append(filled);
    return svg;
  }

  // --------------------------------------------------------------------------------------------------------- shards

  const shards = new Map(); // number -> a promise of its content
  const arrivals = new Map(); // number -> what to call with its content

  window.flnlShard = (number, content) => arrivals.get(number)?.(content);

  function shard(number) {
    if (!shards.has(number)) {
      shards.set(number, new Promise((arrive, fail) => {
        const script = make("script", { src: "pages/" + String(number).padStart(4, "0") + ".js" });
        arrivals.set(number, arrive);
        script.onload = () => script.remove();
        script.onerror = () => {
          script.remove();
          shards.delete(number);
          fail(new Error(number));
        };
        document.head.append(script);
      }));
    }
    return shards.get(number);
  }

  async function suspect(i) {
    const held = await shard(Math.floor(i / data.perPage));
    const at = i % data.perPage;
    return {
      number: i,
      client: all.client[i],
      sample: all.sample[i],
      score: held.score[at],
      rank: held.rank[at],
      issue: held.issue[at],
      flagged: held.flagged && held.flagged[at],
      people: held.people && held.people[at],
      likeliest: held.likeliest[at],
      image: held.image[at] || null,
    };
  }

  // ------------------------------------------------------------------------------------------------------- verdicts

  const STORE = `flnl audit ${data.key} ${data.federation}`;
  const identities = all.sample.map((name, i) => JSON.stringify([all.client[i], name]));
  let verdicts = new Map(); // identity -> [verdict, label], from all pages of the run
  let kept = true;

  // Takes what this page and others of the run have kept; verdicts that cannot be kept stay as they are here.
  function refresh() {
    if (!kept) return;
    try {
      const stored = JSON.parse(localStorage.getItem(STORE) || "[]");
      verdicts = new Map(stored.filter(([, [verdict, label]]) => verdict in SHOWN && (label === "" || data.classes.includes(label))));
    } catch {
      kept = false;
    }
  }

  function keep() {
    try {
      localStorage.setItem(STORE, JSON.stringify([...verdicts]));
      kept = true;
    } catch {
      kept = false;
    }
    progress();
  }

  const verdictOf = (i) => verdicts.get(identities[i])?.[0];

  // The class that a wrong label should perhaps be: the likeliest one besides it.
  const instead = (one) => one.likeliest.map(([k]) => k).find((k) => k !== all.given[one.number]);

  function judge(one, verdict, label) {
    refresh();
    if (verdict === null) verdicts.delete(identities[one.number]);
    else {
      const labels = { right: data.classes[all.given[one.number]], wrong: label ?? data.classes[instead(one)], unsure: "" };
      verdicts.set(identities[one.number], [verdict, labels[verdict]]);
    }
    keep();
  }

  // As bytes: a name that is no UTF-8 has its bytes as surrogates, and goes out as it came in.
  function bytes(text) {
    const parts = [];
    for (const piece of text.split(/([\udc80-\udcff])/u)) {
      const code = piece.length === 1 ? piece.charCodeAt(0) : 0;
      parts.push(code >= 0xdc80 && code <= 0xdcff ? new Uint8Array([code - 0xdc00]) : new TextEncoder().encode(piece));
    }
    return parts;
  }

  function cell(value) {
    const text = String(value);
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }

  function save() {
    refresh();
    const rows = [...verdicts].map(([who, [verdict, label]]) => [...JSON.parse(who), verdict, label]);
    const order = new Intl.Collator(undefined, { numeric: true });
    rows.sort((a, b) => order.compare(a[0], b[0]) || (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : 0));
    const lines = [["client", "sample", "verdict", "label"], ...rows].map((row) => row.map(cell).join(",") + "\n");
    const url = URL.createObjectURL(new Blob(bytes(lines.join("")), { type: "text/csv" }));
    const link = make("a", { href: url, download: "verdicts.csv" });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  // ---------------------------------------------------------------------------------------------------------- cards

  function card(one) {
    const given = all.given[one.number];
    const predicted = all.predicted[one.number];
    const name = visible(one.sample);
    const top = make("div", { className: "top" });
    const text = data.worded && one.image ? [make("p", { className: "text" }, visible(one.image))] : [];
    if (data.worded) {
      // what is shown is a text, above
    } else if (one.image && /^data:image\/(png|webp);base64,[A-Za-z0-9+/=]+$/.test(one.image)) {
      const image = make("img", { src: one.image, alt: "", decoding: "async" });
      image.onload = () => image.classList.toggle("tiny", image.naturalWidth <= TINY);
      top.append(make("div", { className: "picture" }, image));
    } else if (one.number < data.pictured) {
      top.append(make("div", { className: "picture" }, name));
    }
    top.append(make("dl", { className: "labels" },
      make("dt", {}, "given"), make("dd", { title: className(given) }, className(given)),
      make("dt", {}, "suggested"), make("dd", { title: className(predicted) }, className(predicted))));
    const bars = make("ol", { className: "bars" }, ...one.likeliest.map(([k, p]) =>
      make("li", { className: k === predicted ? "suggested" : "" }, make("span", { title: className(k) }, className(k)), bar(p), make("span", {}, p.toFixed(2)))));
    const about = make("p", { className: "about" }, `No. ${count(one.rank)} · score ${one.score}`);
    if (!one.issue) about.append(" · ", make("span", { className: "tag" }, "no issue"));
    if (one.people) about.append(` · ${one.people}`);
    if (one.flagged) about.append(" · ", make("span", { className: "tag" }, "method: flagged"));
    about.append(make("br"), `client ${one.client} · `, make("b", {}, name));
    const buttons = Object.entries(VERDICTS).map(([key, verdict]) =>
      make("button", { type: "button", className: verdict, "aria-keyshortcuts": key, onclick: () => toggle(node, verdict) }, SHOWN[verdict]));
    const node = make("li", { className: "card", tabIndex: -1 }, ...text, top, bars, about, make("div", { className: "verdict" }, ...buttons));
    node.setAttribute("aria-label", `${name}: given ${className(given)}, suggested ${className(predicted)}`);
    node.one = one;
    mark(node);
    return node;
  }

  function mark(node) {
    const [verdict, label] = verdicts.get(identities[node.one.number]) || [null, ""];
    if (verdict === null) delete node.dataset.verdict;
    else node.dataset.verdict = verdict;
    for (const button of node.querySelectorAll(".verdict button")) button.setAttribute("aria-pressed", button.classList.contains(verdict));
    node.querySelector(".truth")?.remove();
    if (verdict !== "wrong") return;
    const choice = make("select", { ariaLabel: "The right label", onchange: () => judge(node.one, "wrong", data.classes[choice.value]) },
      ...data.classes.flatMap((name, k) => (k === all.given[node.one.number] ? [] : [make("option", { value: k }, visible(name))])));
    choice.value = data.classes.indexOf(label);
    node.append(make("label", { className: "truth" }, "It is", choice));
  }

  function toggle(node, verdict) {
    judge(node.one, node.dataset.verdict === verdict ? null : verdict);
    mark(node);
  }

  // ----------------------------------------------------------------------------------------------------------- view

  const chosen = { client: null, pair: null, review: false };
  let view = []; // numbers of the suspects to show
  let added = 0; // how many of them are on the page
  let drawing = 0; // which list is being drawn; a later one ends the earlier
  let busy = false;

  function matches(i) {
    if (chosen.client !== null && all.row[i] !== chosen.client) return false;
    if (chosen.pair !== null && (all.given[i] !== chosen.pair[0] || all.predicted[i] !== chosen.pair[1])) return false;
    const which = byId("which").value;
    return which === "" || (verdictOf(i) || "open") === which;
  }

  function numbers() {
    if (chosen.review) return all.review.filter(matches);
    const cut = Number(slider.value);
    const below = [];
    for (let i = 0; i < all.ranked && all.firstCut[i] <= cut; i++) if (matches(i)) below.push(i);
    return below;
  }

  function draw() {
    drawing += 1;
    view = numbers();
    added = 0;
    busy = false;
    grid.replaceChildren();
    describe();
    more();
  }

  async function more() {
    if (busy || added >= view.length) return;
    busy = true;
    const mine = drawing;
    const next = view.slice(added, added + CHUNK);
    try {
      const ones = await Promise.all(next.map(suspect));
      if (mine !== drawing) return;
      grid.append(...ones.map(card));
      added += ones.length;
      if (added === ones.length && grid.firstChild) grid.firstChild.tabIndex = 0;
      busy = false;
      describe();
      if (near()) more();
    } catch (error) {
      if (mine !== drawing) return;
      busy = false;
      added = view.length;
      byId("end").hidden = false;
      byId("end").textContent = `A file of the folder “pages” cannot be read (no. ${error.message}). Keep the folder beside this page.`;
    }
  }

  const near = () => byId("end").getBoundingClientRect().top < window.innerHeight + 900;

  function describe() {
    const cut = Number(slider.value);
    const below = data.below[cut];
    byId("count").textContent = chosen.review ? `${count(view.length)} to review` : `${count(view.length)} shown`;
    byId("cut-at").textContent = data.cuts[cut].toFixed(2);
    byId("cut-count").textContent = count(below);
    byId("cut-precision").textContent = percent(data.expected[cut]);
    slider.setAttribute("aria-valuetext", `${data.cuts[cut].toFixed(2)}: ${count(below)} labels, expected precision ${percent(data.expected[cut])}`);
    byId("mark").setAttribute("x1", data.cuts[cut] * 100);
    byId("mark").setAttribute("x2", data.cuts[cut] * 100);
    byId("cut-limit").hidden = below <= all.ranked;
    byId("cut-limit").textContent = `The page holds the first ${count(all.ranked)} of them; all are in audit.csv.`;
    const end = byId("end");
    end.hidden = false;
    if (!view.length) end.textContent = chosen.client === null && chosen.pair === null ? "No suspect here: nothing stands out below this cut." : "No suspect here: remove a filter, or move the cut to the right.";
    else end.textContent = added >= view.length ? "That is all." : "…";
    progress();
  }

  function shares() {
    const cut = Number(slider.value);
    for (const place of document.querySelectorAll("td[data-below]")) {
      const changes = data.clients[place.dataset.below];
      const size = data.sizes[place.dataset.below];
      let below = 0;
      for (let i = 0; i < changes.length && changes[i] <= cut; i += 2) below = changes[i + 1];
      place.dataset.value = below;
      place.textContent = `${count(below)} (${size ? Math.round((100 * below) / size) : 0}\u202f%)`;
    }
  }

  function wilson(hits, trials) {
    const z2 = 1.959963984540054 ** 2;
    const share = hits / trials;
    const half = Math.sqrt(z2 * ((share * (1 - share)) / trials + z2 / (4 * trials ** 2)));
    return [-1, 1].map((sign) => Math.min(1, Math.max(0, (share + z2 / (2 * trials) + sign * half) / (1 + z2 / trials))));
  }

  function progress() {
    const place = byId("progress");
    place.hidden = !verdicts.size && !chosen.review && kept;
    const lines = [];
    if (!kept) lines.push("This browser does not keep verdicts for this page: save them before you leave.");
    if (chosen.review) {
      const given = all.review.map(verdictOf);
      const [wrong, right, unsure] = ["wrong", "right", "unsure"].map((name) => given.filter((v) => v === name).length);
      let line = `Review of ${count(all.review.length)} issues drawn at random: ${wrong} wrong, ${right} right, ${unsure} unsure.`;
      const open = all.review.length - wrong - right - unsure;
      if (open) line += ` The precision is told once all are judged; ${count(open)} are not.`;
      else if (wrong + right) {
        const [low, high] = wilson(wrong, wrong + right);
        line += ` Precision ${percent(wrong / (wrong + right))} (95 % interval: ${percent(low)} to ${percent(high)}).`;
      }
      lines.push(line);
    } else if (verdicts.size) {
      const tally = Object.keys(SHOWN).map((name) => `${count([...verdicts.values()].filter(([v]) => v === name).length)} ${name}`);
      lines.push(`Verdicts: ${tally.join(", ")}.`);
    }
    place.textContent = lines.join(" ");
  }

  // -------------------------------------------------------------------------------------------------------- filters

  function filtersChanged() {
    for (const row of document.querySelectorAll("#clients tbody tr")) {
      const button = row.querySelector("button");
      const on = chosen.client === Number(button.dataset.client);
      row.classList.toggle("chosen", on);
      button.setAttribute("aria-pressed", on);
    }
    for (const button of document.querySelectorAll("#pairs button")) {
      const on = chosen.pair !== null && chosen.pair[0] === Number(button.dataset.given) && chosen.pair[1] === Number(button.dataset.predicted);
      button.closest("td").classList.toggle("chosen", on);
      button.setAttribute("aria-pressed", on);
    }
    const remove = (label, clear) => make("button", { type: "button", className: "filter", title: "remove this filter", onclick: () => { clear(); filtersChanged(); } }, label);
    const filters = [];
    if (chosen.client !== null) {
      const name = document.querySelector(`#clients button[data-client="${chosen.client}"]`).textContent;
      filters.push(remove(/^\d+$/.test(name) ? `client ${name}` : name, () => { chosen.client = null; }));
    }
    if (chosen.pair !== null) filters.push(remove(`${className(chosen.pair[0])} → ${className(chosen.pair[1])}`, () => { chosen.pair = null; }));
    byId("filters").replaceChildren(...filters);
    byId("review").setAttribute("aria-pressed", chosen.review);
    draw();
  }

  for (const button of document.querySelectorAll("#clients tbody button")) {
    button.addEventListener("click", () => {
      const client = Number(button.dataset.client);
      chosen.client = chosen.client === client ? null : client;
      filtersChanged();
    });
  }
  for (const button of document.querySelectorAll("#pairs button")) {
    button.addEventListener("click", () => {
      const pair = [Number(button.dataset.given), Number(button.dataset.predicted)];
      chosen.pair = chosen.pair !== null && chosen.pair.join() === pair.join() ? null : pair;
      filtersChanged();
    });
  }
  for (const button of document.querySelectorAll("#clients thead button")) {
    button.addEventListener("click", () => {
      const header = button.closest("th");
      const column = Number(button.dataset.column);
      const order = header.ariaSort === "descending" ? "ascending" : "descending";
      for (const other of header.parentNode.children) other.ariaSort = "none";
      header.ariaSort = order;
      const body = document.querySelector("#clients tbody");
      const value = (row) => Number(row.children[column].dataset.value);
      const sign = order === "ascending" ? 1 : -1;
      body.replaceChildren(...[...body.children].sort((a, b) => sign * (value(a) - value(b))));
    });
  }

  let waiting = 0;
  slider.addEventListener("input", () => {
    chosen.review = false;
    describe();
    shares();
    clearTimeout(waiting);
    waiting = setTimeout(filtersChanged, 120);
  });
  byId("which").addEventListener("change", draw);
  byId("save").addEventListener("click", save);
  byId("review").addEventListener("click", () => {
    chosen.review = !chosen.review;
    if (chosen.review) {
      chosen.client = chosen.pair = null;
      byId("which").value = "";
    }
    filtersChanged();
  });
  addEventListener("storage", (event) => { // from another page of the run
    if (event.key !== STORE && event.key !== null) return;
    refresh();
    for (const node of grid.children) mark(node);
    progress();
  });

  // ------------------------------------------------------------------------------------------------------- keyboard

  function focus(node) {
    if (!node) return;
    for (const other of grid.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    node.tabIndex = 0;
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "nearest" });
  }

  function columns() {
    const top = grid.firstChild.offsetTop;
    let n = 0;
    while (grid.children[n] && grid.children[n].offsetTop === top) n += 1;
    return n;
  }

  grid.addEventListener("keydown", (event) => {
    const node = event.target.closest(".card");
    if (!node || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const at = [...grid.children].indexOf(node);
    const steps = { ArrowRight: 1, ArrowLeft: -1, j: 1, k: -1, ArrowDown: columns(), ArrowUp: -columns(), Home: -at, End: grid.children.length - 1 - at };
    if (key in VERDICTS || key === "x") {
      judge(node.one, key === "x" ? null : VERDICTS[key]);
      mark(node);
      if (key !== "x") focus(node.nextElementSibling || node);
    } else if (key in steps) {
      focus(grid.children[Math.min(Math.max(at + steps[key], 0), grid.children.length - 1)]);
    } else return;
    event.preventDefault();
  });
  grid.addEventListener("focusin", (event) => {
    const node = event.target.closest(".card");
    if (node && node.tabIndex !== 0) {
      for (const other of grid.querySelectorAll('.card[tabindex="0"]')) other.tabIndex = -1;
      node.tabIndex = 0;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest(".card, select") || event.ctrlKey || event.metaKey || event.altKey || !grid.firstChild) return;
    if (event.key.toLowerCase() in VERDICTS || event.key === "j") focus(grid.querySelector('[tabindex="0"]') || grid.firstChild);
  });

  // ----------------------------------------------------------------------------------------------------------- start

  refresh();
  byId("review").textContent = `Review ${all.review.length} at random`;
  byId("review").hidden = !all.review.length;
  byId("toolbar").hidden = byId("keys").hidden = slider.hidden = false;
  for (const event of ["scroll", "resize"]) addEventListener(event, () => { if (near()) more(); }, { passive: true });
  byId("end").hidden = false;
  shares();
  filtersChanged();
})();
