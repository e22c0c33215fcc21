"use strict";

// Whatever comes from users (ids, titles) is put into the page as text, never as markup.

const find = (id) => document.getElementById(id);
const state = {
  user: null, cluster: null, items: [], before: [], selected: null, health: null, group: null,
};
let asked = 0; // answers to earlier questions than the latest are thrown away

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "click") node.addEventListener("click", value);
    else if (name.startsWith("aria-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Integers beyond 2^53 stay as they are written: the service takes the text for the same id.
function parsed(text) {
  return JSON.parse(text, (key, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value,
  );
}

async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const data = parsed(await answer.text());
  if (!answer.ok) throw new Error(data.error || `status ${answer.status}`);
  return data;
}

function notice(text) {
  find("notice").textContent = text || "";
  find("notice").hidden = !text;
}

const numbers = new Intl.NumberFormat("en");
const nameOf = (one, key = "id") => one.title ?? String(one[key]);

// Neighbouring numbers get colours far apart.
function clusterChip(number, text = `cluster ${number}`) {
  const chip = make("span", { class: "cluster" }, text);
  chip.style.setProperty("--hue", String(Math.round((number * 137.508) % 360)));
  return chip;
}

// ---- users

let typing = 0;

async function searchUsers(text) {
  const mine = ++typing;
  const { found } = await ask(`search?side=users&count=12&text=${encodeURIComponent(text)}`);
  if (mine !== typing) return;
  const list = find("user-list");
  list.replaceChildren(
    ...found.map((one) =>
      make("li", {}, make("button", {
        type: "button",
        textContent: String(one.id),
        "aria-pressed": String(String(one.id) === String(state.user)),
        click: () => pickUser(one.id),
      })),
    ),
  );
  if (!found.length) {
    list.append(make("li", { class: "small" }, text
      ? "No user like that. Press Enter to see what a newcomer gets."
      : "No users yet. Add the first event."));
  }
}

function pickUser(user) {
  state.user = user;
  state.cluster = null;
  state.items = [];
  state.before = [];
  state.selected = null;
  find("event-user").value = String(user);
  find("why").hidden = true;
  find("why-empty").hidden = false;
  for (const button of find("user-list").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.textContent === String(user)));
  }
  return refresh({ marks: false });
}

async function showUser() {
  const text = String(state.user);
  const { found } = await ask(`search?side=users&count=1&text=${encodeURIComponent(text)}`);
  const known = found.find((one) => String(one.id) === text);
  find("who").hidden = false;
  find("who-name").textContent = text;
  find("who-about").textContent = known
    ? `${numbers.format(known.interactions)} interactions`
    : "not known yet; this is what newcomers get";
  const change = find("who-cluster");
  const cluster = known?.cluster ?? null;
  if (cluster === null) change.replaceChildren();
  else if (state.cluster !== null && state.cluster !== cluster) {
    change.replaceChildren(
      clusterChip(state.cluster, `user cluster ${state.cluster}`), "→", clusterChip(cluster, String(cluster)));
  } else if (state.cluster === null) change.replaceChildren(clusterChip(cluster, `user cluster ${cluster}`));
  state.cluster = cluster;
}

// ---- recommendations

async function refresh({ marks = true } = {}) {
  if (state.user === null) return;
  const mine = ++asked;
  const seen = find("with-seen").checked;
  const user = encodeURIComponent(String(state.user));
  try {
    const data = await ask(`recommend?user=${user}&k=10&with_seen=${seen}`);
    if (mine !== asked) return;
    showAnswers(data.items, marks);
    await showUser();
    if (state.selected !== null) await explain(state.selected);
    notice(null);
  } catch (error) {
    if (mine === asked) notice(error.message);
  }
}

function showAnswers(items, marks) {
  const order = (list) => JSON.stringify(list.map((one) => String(one.item)));
  const same = order(items) === order(state.items); // then what moved before is still of interest
  const last = same ? state.before : state.items;
  state.before = marks ? last : [];
  const before = new Map(state.before.map((one, place) => [String(one.item), place]));
  const scores = items.map((one) => one.score);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  find("answers-empty").hidden = items.length > 0;
  find("answers-empty").textContent = "There is nothing left to recommend.";
  find("answers").replaceChildren(
    ...items.map((one, place) => {
      const fill = make("span");
      fill.style.width = `${12 + (88 * (one.score - low)) / (high - low || 1)}%`;
      return make("li", {}, make("button", {
        type: "button",
        class: "answer",
        title: nameOf(one, "item"),
        "aria-pressed": String(String(one.item) === String(state.selected)),
        click: () => select(one.item),
      },
      make("span", { class: "rank" }, String(place + 1)),
      make("span", { class: "what" }, nameOf(one, "item"),
        one.title === null ? null : make("span", { class: "id" }, `  ${one.item}`)),
      make("span", { class: "chip" }, one.cluster === null ? "" : clusterChip(one.cluster)),
      make("span", { class: "score" }, one.score.toFixed(3),
        high > low ? make("span", { class: "bar" }, fill) : null),
      before.size ? mark(before.get(String(one.item)), place) : make("span", { class: "move" })));
    }),
  );
  state.items = items;
}

function mark(before, place) {
  if (before === undefined) return make("span", { class: "move new" }, "new");
  const up = before - place;
  if (!up) return make("span", { class: "move" });
  return make("span", { class: `move ${up > 0 ? "up" : "down"}` }, `${up > 0 ? "▲" : "▼"}${Math.abs(up)}`);
}

// ---- reasons

function select(item) {
  state.selected = item;
  find("event-item").value = String(item);
  for (const button of find("answers").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", "false");
  }
  const place = state.items.findIndex((one) => String(one.item) === String(item));
  find("answers").children[place]?.firstChild.setAttribute("aria-pressed", "true");
  explain(item).catch((error) => notice(error.message));
}

function memberList(members) {
  return make("ul", { class: "members" }, ...members.map((one) =>
    make("li", {}, make("span", { class: "text" }, nameOf(one, "item" in one ? "item" : "id")),
      make("span", { class: "count" }, numbers.format(one.interactions)))));
}

async function explain(item) {
  const user = encodeURIComponent(String(state.user));
  const why = await ask(`explain?item=${encodeURIComponent(String(item))}&user=${user}`);
  if (String(state.selected) !== String(item)) return;
  const parts = [
    make("p", { class: "name" }, nameOf(why, "item")),
    make("p", { class: "small" },
      `${why.title === null ? "" : `${why.item}, `}${numbers.format(why.interactions)} interactions, ` +
      `score ${why.score.toFixed(3)} for ${why.user}`),
  ];
  if (why.cluster === null) {
    parts.push(make("p", {}, "Items are in no clusters here: each has a row of its own."));
  } else {
    const others = why.members - 1;
    parts.push(make("p", {}, clusterChip(why.cluster),
      ` with ${numbers.format(others)} other${others === 1 ? "" : "s"}` +
      `${why.own_row ? ", and a row of its own besides" : ""}`));
    const mixture = Object.entries(why.weights).slice(0, 8);
    if (mixture.length > 1) {
      parts.push(make("h3", {}, "A mixture of rows, as far as is known of it"));
      parts.push(make("div", { class: "mixture" }, ...mixture.map(([row, weight]) => {
        const piece = make("span", { title: `row ${row}` });
        piece.style.setProperty("--hue", String(Math.round((row * 137.508) % 360)));
        piece.style.width = `${weight * 100}%`;
        return piece;
      })));
      parts.push(make("p", { class: "mixture-words" }, ...mixture.slice(0, 4).map(([row, weight]) =>
        clusterChip(Number(row), `${row}: ${Math.round(weight * 100)} %`))));
    }
    if (why.codes.length > 1) {
      parts.push(make("h3", {}, "Its cluster in each level"));
      parts.push(make("ul", { class: "path" }, ...why.codes.map((one) =>
        make("li", {}, clusterChip(one, String(one))))));
    }
    if (why.path.length > 1) {
      parts.push(make("h3", {}, "Split off along"));
      parts.push(make("ul", { class: "path" }, ...why.path.map((one) =>
        make("li", {}, clusterChip(one, String(one))))));
    }
    parts.push(make("h3", {}, `What ${why.user} has seen of this cluster`));
    parts.push(why.shared.length ? memberList(why.shared) : make("p", { class: "small" }, "Nothing yet."));
    parts.push(make("h3", {}, "Its neighbours, by interactions"));
    parts.push(why.neighbours.length ? memberList(why.neighbours) : make("p", { class: "small" }, "None."));
  }
  find("why").replaceChildren(...parts);
  find("why").hidden = false;
  find("why-empty").hidden = true;
}

// ---- events

async function suggestItems(text) {
  const { found } = await ask(`search?side=items&count=12&text=${encodeURIComponent(text)}`);
  find("event-items").replaceChildren(
    ...found.map((one) => make("option", { value: String(one.id), label: nameOf(one) })),
  );
}

function tell(line, kind) {
  const entry = make("li", { class: kind }, line);
  find("log").prepend(entry);
  while (find("log").children.length > 4) find("log").lastChild.remove();
  return entry;
}

// An id that the page got as a number is sent as one.
function asId(text) {
  const number = Number(text);
  return Number.isSafeInteger(number) && String(number) === text ? number : text;
}

async function sendEvent(submitted) {
  submitted.preventDefault();
  const [user, item] = [find("event-user").value, find("event-item").value];
  const target = find("event-target").value;
  const event = { user: asId(user), item: asId(item) };
  if (target !== "") event.target = Number(target);
  const headers = { "content-type": "application/json" };
  if (find("event-key").value) headers["x-api-key"] = find("event-key").value;
  const button = find("event-form").querySelector("button");
  button.disabled = true;
  const begun = performance.now();
  const what = `${user} · ${item}${target === "" ? "" : ` · ${target}`}`;
  try {
    const body = JSON.stringify({ events: [event] });
    const { last } = await ask("events", { method: "POST", headers, body });
    const entry = tell(`${what}: on the disk`, "");
    await learned(last);
    entry.textContent = `${what}: learned after ${((performance.now() - begun) / 1000).toFixed(2)} s`;
    entry.className = "good";
    if (String(state.user) !== user) {
      await searchUsers("");
      await pickUser(event.user);
    } else await refresh();
    await showGroups();
  } catch (error) {
    tell(`${what}: ${error.message}`, "bad");
  } finally {
    button.disabled = false;
  }
}

async function learned(last) {
  for (let tries = 0; tries < 100; tries++) {
    await look();
    if (state.health.learned >= last) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error("taken, and not learned within five seconds");
}

// ---- clusters

let allGroups = false;

async function showGroups() {
  try {
    const { clusters } = await ask("clusters");
    const shown = allGroups ? clusters : clusters.slice(0, 8);
    find("groups-all").hidden = clusters.length <= 8 || allGroups;
    find("groups-empty").hidden = clusters.length > 0;
    find("groups-empty").textContent = "No clusters yet.";
    find("groups").replaceChildren(...shown.map((one) => make("li", {}, make("button", {
      type: "button",
      class: "group",
      "aria-pressed": String(state.group === one.cluster),
      click: () => showMembers(one.cluster, 0),
    },
    make("span", { class: "head" }, clusterChip(one.cluster),
      `${numbers.format(one.members)} items` +
      (one.mean_target === null ? "" : `, mean ${one.mean_target.toFixed(2)}`)),
    make("span", { class: "names" }, one.examples.join(" · "))))));
  } catch (error) {
    find("groups-empty").hidden = false;
    find("groups-empty").textContent = error.message;
    find("groups").replaceChildren();
  }
}

async function showMembers(cluster, start) {
  const count = 20;
  state.group = cluster;
  const data = await ask(`clusters/${cluster}?start=${start}&count=${count}`);
  for (const button of find("groups").querySelectorAll("button")) {
    const pressed = button.querySelector(".cluster").textContent === `cluster ${cluster}`;
    button.setAttribute("aria-pressed", String(pressed));
  }
  const end = start + data.members.length;
  find("members").hidden = false;
  find("members").replaceChildren(
    make("h3", {}, `Cluster ${cluster}: ${start + 1}–${end} of ${numbers.format(data.total)}, most active first`),
    memberList(data.members),
    start > 0 ? make("button", { type: "button", class: "plain", click: () => showMembers(cluster, start - count) }, "Earlier ") : null,
    end < data.total ? make("button", { type: "button", class: "plain", click: () => showMembers(cluster, end) }, "More") : null,
  );
}

// ---- the state of the service

async function look() {
  const before = state.health?.version;
  const health = await ask("healthz");
  state.health = health;
  find("run").textContent = health.run;
  find("status").className = health.status === "ok" ? "status" : "status wrong";
  find("status").textContent = [
    `version ${numbers.format(health.version)}`,
    health.kind === "online" ? null : "takes no events",
    health.events === null ? null : `${numbers.format(health.events)} events`,
    `${numbers.format(health.users)} users`,
    `${numbers.format(health.items)} items`,
  ].filter(Boolean).join(" · ");
  if (health.problem) notice(health.problem);
  return before !== undefined && before !== health.version;
}

async function watch() {
  try {
    if (!document.hidden && (await look())) await refresh();
  } catch {
    find("status").className = "status wrong";
    find("status").textContent = "the service does not answer";
  }
  setTimeout(watch, 2000);
}

async function begin() {
  await look();
  const closed = state.health.kind !== "online";
  document.querySelector("main").classList.toggle("closed", closed);
  find("key-field").hidden = !state.health.needs_key;
  find("event-target").required = state.health.needs_target;
  find("event-target").placeholder = state.health.needs_target ? "e.g. 5" : "1";
  const users = typing ? null : searchUsers(""); // who was quicker has typed something already
  await Promise.all([users, suggestItems(""), showGroups()]);
  const first = find("user-list").querySelector("button");
  if (users && first && state.user === null && typing === 1) first.click();
  setTimeout(watch, 2000);
}

find("user-text").addEventListener("input", (event) => searchUsers(event.target.value.trim()));
find("user-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("user-text").value.trim();
  const first = find("user-list").querySelector("button");
  if (first) first.click();
  else if (text) pickUser(asId(text));
});
find("with-seen").addEventListener("change", () => refresh({ marks: false }));
find("event-item").addEventListener("input", (event) => suggestItems(event.target.value.trim()));
find("event-form").addEventListener("submit", sendEvent);
find("groups-all").addEventListener("click", () => { allGroups = true; showGroups(); });
begin().catch((error) => notice(error.message));
