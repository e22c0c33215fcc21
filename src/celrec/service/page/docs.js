"use strict";

// Shows openapi.json to people.

function make(tag, text = "", name = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  return node;
}

function resolved(schema, all) {
  if (!schema) return {};
  return schema.$ref ? all[schema.$ref.split("/").pop()] : schema;
}

// What a value of a schema looks like.
function example(schema, all, depth = 0) {
  const one = resolved(schema, all);
  if (depth > 5) return "…";
  if (one.anyOf) return example(one.anyOf[0], all, depth);
  if (one.properties) {
    return Object.fromEntries(
      Object.entries(one.properties).map(([name, part]) => [name, example(part, all, depth + 1)]),
    );
  }
  if (one.type === "array") return [example(one.items, all, depth + 1)];
  if (one.type === "object") return { name: example(one.additionalProperties, all, depth + 1) };
  if (one.type === "integer") return one.default ?? 7;
  if (one.type === "number") return one.default ?? 4.5;
  if (one.type === "boolean") return one.default ?? false;
  return one.type === "null" ? null : "text";
}

function type_of(schema) {
  const kinds = (schema.anyOf ?? [schema]).map((one) => one.type).filter((kind) => kind !== "null");
  const words = [[...new Set(kinds)].join(" or ")];
  if (schema.default !== undefined && schema.default !== null) words.push(`default ${schema.default}`);
  if (schema.maximum !== undefined) words.push(`at most ${schema.maximum}`);
  return words.join(", ");
}

function shown(path, verb, about, all) {
  const card = make("section", "", "card");
  const title = make("h2");
  title.append(make("span", verb.toUpperCase(), "verb"), make("code", path));
  card.append(title, make("p", about.description ?? about.summary));
  if (about.parameters?.length) {
    const table = make("table");
    for (const one of about.parameters) {
      const row = table.insertRow();
      row.insertCell().append(make("code", one.name), make("span", one.required ? " *" : ""));
      row.insertCell().textContent = [type_of(one.schema), one.description].filter(Boolean).join("; ");
    }
    card.append(table);
  }
  const json = (content) => content?.["application/json"]?.schema;
  if (json(about.requestBody?.content)) {
    const body = example(json(about.requestBody.content), all);
    card.append(make("pre", JSON.stringify(body, null, 2)));
  }
  const [status, good] = Object.entries(about.responses).find(([code]) => code < "300");
  if (json(good.content)) {
    const details = make("details");
    details.append(make("summary", `Answer ${status}`));
    details.append(make("pre", JSON.stringify(example(json(good.content), all), null, 2)));
    card.append(details);
  }
  const bad = Object.keys(about.responses).filter((code) => code >= "400").join(", ");
  card.append(make("p", `Refused with ${bad}, and {"error": "one line"}.`, "small"));
  return card;
}

async function begin() {
  const api = await (await fetch("openapi.json")).json();
  const intro = make("section", "", "card");
  for (const line of api.info.description.split("\n\n")) intro.append(make("p", line));
  document.getElementById("doc").append(intro);
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, about] of Object.entries(verbs)) {
      document.getElementById("doc").append(shown(path, verb, about, api.components.schemas));
    }
  }
}

begin();
