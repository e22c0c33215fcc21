"use strict";
(() => {
  const STEP = 50; // members that are shown at once
  const PREVIEW = 6;
  const FIRST = 60; // clusters that are shown to begin with

  // Colours: as the system has them until somebody says otherwise.
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tellTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tellTheme();
  });
  system.addEventListener("change", tellTheme);
  tellTheme();

  // Words from ids and titles become text, never markup.
  const make = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const marked = (words, wanted) => {
    const at = wanted ? words.toLowerCase().indexOf(wanted) : -1;
    if (at < 0) return make("bdi", {}, words);
    const end = at + wanted.length;
    return make("bdi", {}, words.slice(0, at), make("mark", {}, words.slice(at, end)), words.slice(end));
  };
  const whole = (number) => number.toLocaleString("en-GB");

  class Explorer {
    constructor(box) {
      this.key = box.dataset.key;
      this.body = box.querySelector("tbody");
      this.rows = [...this.body.rows];
      this.members = JSON.parse(box.querySelector("script.members").textContent);
      this.status = box.querySelector(".status");
      this.input = box.querySelector("input");
      this.wanted = "";
      this.limit = FIRST;
      this.more = make("button", { type: "button", className: "more" });
      this.more.addEventListener("click", () => this.showAll());
      this.body.parentElement.after(this.more);
      this.heads = [...box.querySelectorAll("thead th")];
      for (const head of this.heads) this.makeSortable(head);
      for (const row of this.rows) this.makeExpandable(row);
      box.querySelector(".tools").hidden = false;
      this.input.addEventListener("input", () => this.search(this.input.value));
      this.refresh();
    }

    // Of very many clusters the first ones, in the order that was asked for, or all that were found.
    refresh() {
      let shown = 0;
      for (const row of this.rows) {
        row.hidden = this.wanted ? !row.matching : shown >= this.limit && !row.detail;
        shown += !row.hidden;
      }
      this.more.hidden = Boolean(this.wanted) || shown === this.rows.length;
      this.more.textContent = `Show all ${whole(this.rows.length)} clusters`;
    }

    showAll() {
      this.limit = Infinity;
      this.refresh();
    }

    makeSortable(head) {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      if (!head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => this.sort(head));
    }

    sort(head) {
      const key = head.dataset.key;
      const before = head.getAttribute("aria-sort");
      const first = key === "number" || key === "parent" ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = before === first ? other : first;
      for (const one of this.heads) one.setAttribute("aria-sort", one === head ? order : "none");
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => (key in row.dataset ? Number(row.dataset[key]) : null);
      this.rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return (x === null) - (y === null); // those come last
        return sign * (x - y) || a.dataset.number - b.dataset.number;
      });
      for (const row of this.rows) {
        this.body.append(row);
        if (row.detail) this.body.append(row.detail);
      }
      this.refresh();
    }

    makeExpandable(row) {
      const place = row.querySelector(".no");
      const button = make("button", { type: "button" }, place.textContent);
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `Cluster ${row.dataset.number}, members`);
      place.replaceChildren(button);
      row.button = button;
      row.preview = row.querySelector(".names");
      row.usual = [...row.preview.childNodes];
      button.addEventListener("click", () => (row.detail ? this.close(row) : this.open(row)));
      row.preview.addEventListener("click", () => button.click());
    }

    open(row) {
      if (row.detail) this.close(row);
      row.button.setAttribute("aria-expanded", "true");
      row.classList.add("open");
      const cell = make("td", { colSpan: row.cells.length });
      row.detail = make("tr", { className: "detail" }, cell);
      row.detail.setAttribute("role", "row");
      cell.setAttribute("role", "cell");
      row.after(row.detail);
      this.fill(row, cell);
    }

    close(row) {
      row.button.setAttribute("aria-expanded", "false");
      row.classList.remove("open");
      row.detail.remove();
      row.detail = null;
    }

    matches(member) {
      const [id, title] = member;
      return id.toLowerCase().includes(this.wanted) || (title ?? "").toLowerCase().includes(this.wanted);
    }

    fill(row, cell) {
      const all = this.members[row.dataset.number];
      const hits = this.wanted ? all.filter((one) => this.matches(one)) : [];
      const listed = hits.length ? [...hits, ...all.filter((one) => !hits.includes(one))] : all;
      const size = Number(row.dataset.size);
      const words = [];
      if ("parent" in row.dataset) words.push(`split from cluster ${row.dataset.parent}`);
      if ("spread" in row.dataset) words.push(`spread ${Number(row.dataset.spread).toFixed(2)}`);
      if (all.length < size) words.push(`the ${whole(all.length)} most active of ${whole(size)} ids`);
      if (words.length) cell.append(make("p", {}, words.join("; ")));
      const titled = all.some((one) => one[1] !== null);
      const coded = all.some((one) => one.length > 4);
      const names = [...(titled ? ["Title"] : []), "Id", ...(coded ? ["Codes"] : []), "Interactions", "Mean"];
      const heads = names.map((name, at) => {
        const head = make("th", { scope: "col", className: at >= names.length - 2 ? "n" : "" }, name);
        return head;
      });
      const body = make("tbody");
      const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
      table.setAttribute("aria-label", `Members of cluster ${row.dataset.number}`);
      const more = make("button", { type: "button", className: "more" });
      let shown = 0;
      const add = () => {
        for (const [id, title, count, mean, codes] of listed.slice(shown, shown + STEP)) {
          const cells = [make("td", {}, marked(titled ? (title ?? id) : id, this.wanted))];
          if (titled) cells.push(make("td", {}, marked(id, this.wanted)));
          if (coded) cells.push(make("td", {}, codes));
          cells.push(make("td", { className: "n" }, whole(count)));
          cells.push(make("td", { className: "n" }, mean === null ? "–" : mean.toFixed(2)));
          const line = make("tr", {}, ...cells);
          if (shown < hits.length) line.className = "hit";
          body.append(line);
          shown += 1;
        }
        more.hidden = shown >= listed.length;
        more.textContent = `Show ${whole(Math.min(STEP, listed.length - shown))} more`;
      };
      more.addEventListener("click", add);
      add();
      cell.append(table, more);
    }

    search(words) {
      this.wanted = words.trim().toLowerCase();
      let clusters = 0;
      let found = 0;
      let first = null;
      for (const row of this.rows) {
        const hits = this.wanted
          ? this.members[row.dataset.number].filter((one) => this.matches(one))
          : [];
        const named = this.wanted !== "" && this.wanted === row.dataset.number;
        row.matching = hits.length > 0 || named;
        if (row.detail) this.close(row);
        row.classList.toggle("found", hits.length > 0);
        if (hits.length) this.showHits(row, hits);
        else row.preview.replaceChildren(...row.usual);
        if (row.matching) {
          clusters += 1;
          found += hits.length;
          first ??= row;
        }
      }
      this.refresh();
      if (first && clusters === 1) this.open(first);
      this.status.textContent = this.wanted ? this.message(found, clusters) : "";
    }

    showHits(row, hits) {
      const parts = [];
      for (const [id, title] of hits.slice(0, PREVIEW)) {
        if (parts.length) parts.push(" · ");
        parts.push(marked(title ?? id, this.wanted));
        if (title !== null && id.toLowerCase().includes(this.wanted)) {
          parts.push(" (", marked(id, this.wanted), ")");
        }
      }
      if (hits.length > PREVIEW) parts.push(` and ${whole(hits.length - PREVIEW)} more`);
      row.preview.replaceChildren(...parts);
    }

    message(found, clusters) {
      if (!clusters) return "Nothing found";
      const ids = found === 1 ? "1 id" : `${whole(found)} ids`;
      return `${ids} in ${clusters === 1 ? "1 cluster" : `${whole(clusters)} clusters`}`;
    }

    show(row) {
      if (this.input.value) {
        this.input.value = "";
        this.search("");
      }
      if (!row.detail) this.open(row);
      this.refresh();
      row.scrollIntoView({ block: "start" });
    }
  }

  const explorers = [...document.querySelectorAll(".explorer")].map((box) => new Explorer(box));
  const follow = () => {
    const row = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const owner = row && explorers.find((one) => one.rows.includes(row));
    if (owner) owner.show(row);
  };
  addEventListener("hashchange", follow);
  follow();
})();
