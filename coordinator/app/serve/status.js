// Reads /status.json every two seconds and shows it. Names from workers are text, never markup.
// SPDX-License-Identifier: Apache-2.0
"use strict";
const at = (id) => document.getElementById(id);
const grouped = (n) => Math.round(n).toLocaleString("en-US");
const fixed = (x, n) => (x === null || x === undefined ? "-" : x.toFixed(n));
const percent = (x) => (x === null || x === undefined ? "-" : (100 * x).toFixed(1) + " %");

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; ++i; }
  return (i === 0 ? n : n.toFixed(n < 10 ? 2 : 1)) + " " + units[i];
}

function time(s) {
  if (s < 120) return s.toFixed(0) + " s";
  if (s < 7200) return (s / 60).toFixed(0) + " min";
  return s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
}

function element(name, text, look) {
  const made = document.createElement(name);
  made.textContent = text;
  if (look) made.className = look;
  return made;
}

// Columns: [heading, look, cell of a row]; a cell is a text or an element.
function table(id, columns, rows, lookOf, none) {
  const head = document.createElement("tr");
  for (const [heading, look] of columns) head.append(element("th", heading, look));
  const lines = rows.map((row) => {
    const line = document.createElement("tr");
    line.className = lookOf ? lookOf(row) : "";
    for (const [, look, cell] of columns) {
      const made = cell(row), td = element("td", "", look);
      td.append(made);
      line.append(td);
    }
    return line;
  });
  if (rows.length === 0) {
    const empty = element("td", none, "text");
    empty.colSpan = columns.length;
    const line = document.createElement("tr");
    line.append(empty);
    lines.push(line);
  }
  at(id).replaceChildren(head, ...lines);
}

function svg(id, width, height, parts) {
  const chart = at(id);
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.replaceChildren(...parts.map(([name, values]) => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) part.setAttribute(key, value);
    return part;
  }));
}

function drawTimes(rounds) {
  const most = Math.max(...rounds.map((r) => r.open_s), 1e-9);
  svg("times", Math.max(rounds.length, 30), 100, rounds.map((r, i) => {
    const height = Math.max(100 * r.open_s / most, 1);
    return ["rect", { x: i + 0.1, y: 100 - height, width: 0.8, height, class: r.by_quorum ? "quorum" : "" }];
  }));
  at("times-note").textContent = rounds.length === 0 ? "no round yet" :
    `the newest ${rounds.length}, longest ${most.toFixed(3)} s; orange: closed at a quorum`;
}

function drawLosses(rounds) {
  const points = rounds.map((r, i) => [i, r.loss]).filter(([, loss]) => loss !== null);
  const losses = points.map(([, loss]) => loss), low = Math.min(...losses), high = Math.max(...losses);
  const y = (loss) => (high > low ? 96 - 92 * (loss - low) / (high - low) : 50).toFixed(2);
  svg("losses", Math.max(rounds.length - 1, 1), 100, points.length < 2 ? [] :
    [["path", { d: "M" + points.map(([i, loss]) => i + " " + y(loss)).join("L") }]]);
  at("losses-note").textContent = points.length === 0 ? "no worker has sent one" :
    `mean of the voters, from ${low.toFixed(4)} to ${high.toFixed(4)}; now ${losses.at(-1).toFixed(4)}`;
}

function state(worker) {
  if (worker.ended) return element("span", "ended", "pill");
  if (!worker.live) return element("span", worker.silent_s === null ? "not back yet" : "away", "pill bad");
  return element("span", worker.voted ? "voted" : "live", "pill good");
}

function late(worker) {
  const all = worker.counted + worker.late;
  return all === 0 ? "-" : percent(worker.late / all);
}

function show(s) {
  const live = s.workers.filter((w) => w.live).length, last = s.rounds.at(-1);
  const waits = s.few_voters || live === 0;
  at("state").textContent = s.failed ? "failed" : s.at_end ? "finished" : s.few_voters ? "waiting for voters" : live > 0 ? "serving" : "waiting for workers";
  at("state").className = "pill " + (s.failed || s.few_voters ? "bad" : waits ? "" : "good");
  const soon = (until) => until && until - Date.now() / 1000 < 30 * 86400;
  const expires = [["the coordinator", s], ...s.workers.map((w) => [w.name, w])].filter(([, c]) => soon(c.certificate_until))
    .map(([name, c]) => `the certificate of ${name} ${1000 * c.certificate_until < Date.now() ? "has expired, on" : "expires on"} ${new Date(1000 * c.certificate_until).toISOString().slice(0, 16).replace("T", " ")} UTC`);
  const warnings = [s.failed, s.few_voters, ...s.workers.map((w) => w.warning), ...expires].filter((text) => text);
  at("failed").hidden = warnings.length === 0;
  at("failed").textContent = warnings.join("; ");
  at("about").textContent = (s.method ? `${s.method}, ${grouped(s.coordinates)} coordinates; ` : "") +
    `${s.listen}, ${s.certificates ? "with certificates" : "without certificates: this machine only"}; up ${time(s.up_s)}`;
  const facts = [["open round", grouped(s.open_round)], ["steps", grouped(s.steps_done) + (s.last_step ? " of " + grouped(s.last_step) : "")],
    ...(s.orders.length ? [["orders", s.orders.join(", ")]] : []), ["workers live", `${live} of ${s.workers.length}`],
    ["voters in it", `${s.voters_in} of ${s.least_voters} needed`], ["last round", last ? fixed(last.open_s, 3) + " s" : "-"], ["its voters", last ? last.voters : "-"],
    ["ballots late", grouped(s.ballots_late)], ["grace window", fixed(s.grace_s, 2) + " s"],
    ["received", bytes(s.bytes_in)], ["sent", bytes(s.bytes_out)], ["journal", bytes(s.journal_bytes)]];
  at("facts").replaceChildren(...facts.map(([name, value]) => {
    const box = document.createElement("div");
    box.append(element("dt", name), element("dd", value));
    return box;
  }));
  drawTimes(s.rounds);
  drawLosses(s.rounds);
  table("workers", [
    ["worker", "text", (w) => w.name], ["", "text", state], ["last call", "", (w) => w.silent_s === null ? "-" : time(w.silent_s) + " ago"],
    ["at round", "", (w) => w.round < 0 ? "-" : grouped(w.round)], ["counted", "", (w) => grouped(w.counted)], ["late", "", late],
    ["refused", "", (w) => grouped(w.refused)], ["weight", "", (w) => String(w.weight)], ["agreement", "", (w) => percent(w.agreement)],
    ["loss", "", (w) => fixed(w.loss, 4)], ["received", "", (w) => bytes(w.bytes_in)], ["sent", "", (w) => bytes(w.bytes_out)],
    ["address", "text", (w) => w.address || "-"],
  ], s.workers, (w) => w.live ? "" : "gone", "no worker has registered yet");
  table("rounds", [
    ["round", "", (r) => grouped(r.round)], ["voters", "", (r) => String(r.voters)], ["missing", "", (r) => String(r.missing)],
    ["left out", "", (r) => String(r.left_out)], ["closed by", "text", (r) => r.by_quorum ? "quorum" : "all votes"],
    ["seconds", "", (r) => fixed(r.open_s, 3)], ["served in", "", (r) => fixed(r.served_s, 3)], ["record", "", (r) => bytes(r.record_bytes)],
    ["loss", "", (r) => fixed(r.loss, 4)], ["parameters before it", "text", (r) => r.params_hash],
  ], s.rounds.slice(-12).reverse(), null, "no round has closed since the start");
  at("kinds").textContent = Object.entries(s.refused).map(([kind, n]) => `${kind.replaceAll("_", " ")}: ${grouped(n)}`).join(", ");
  table("refusals", [
    ["time", "text", (r) => r.time.slice(11, 19)], ["call", "text", (r) => r.call], ["who", "text", (r) => r.worker || "-"],
    ["address", "text", (r) => r.address || "-"], ["why", "text wide", (r) => r.why],
  ], s.refusals, null, "nothing since the start");
  at("footer").textContent = `${s.program}. Also as /status.json and, for Prometheus, /metrics.`;
}

async function refresh() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    show(await answer.json());
  } catch {
    at("state").textContent = "the coordinator does not respond";
    at("state").className = "pill bad";
  }
  setTimeout(refresh, 2000);
}
refresh();
