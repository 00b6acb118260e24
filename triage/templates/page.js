"use strict";
// Draws the data of the page. Every name in it is text: nothing here parses markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const steps = data.steps;
  const COLOURS = 6;
  const PATTERNS = 4;
  const SHAPES = {
    read: "M13 8A5 5 0 1 1 3 8a5 5 0 0 1 10 0z",
    lucky: "M8 2 14 8 8 14 2 8z",
    stale: "M3 3 13 13M13 3 3 13",
    lock: "M4 7h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  };

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const icon = (path) => {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    const shape = document.createElementNS(space, "path");
    shape.setAttribute("d", path);
    svg.append(shape);
    return svg;
  };
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const slotOf = (row) => Math.floor(row / data.stride);

  // Each occupancy has a colour and, when those are used up, a pattern too.
  const looks = new Map();
  const lookOf = (occupancy) => {
    if (occupancy === 0) return "padding";
    if (!looks.has(occupancy)) {
      const order = looks.size;
      looks.set(occupancy, `c${order % COLOURS} p${Math.floor(order / COLOURS) % PATTERNS}`);
    }
    return looks.get(occupancy);
  };

  // State of every row after each shown step: what did not change is as in the step before.
  const states = [];
  steps.forEach((step, column) => {
    const rows = new Map();
    if (column) {
      for (const [row, cell] of states[column - 1]) {
        rows.set(row, { row, holds: cell.holds, written: false, looks: 0, look: null });
      }
    } else {
      data.rows.forEach((row) => rows.set(row, { row, holds: null, looks: 0, look: null }));
    }
    step.cells.forEach((cell) => rows.set(cell.row, cell));
    states.push(rows);
  });
  const pools = [];
  steps.forEach((step, column) => pools.push(step.pool || (column ? pools[column - 1] : null)));
  for (const state of states) {
    for (const cell of state.values()) if (cell.holds) lookOf(cell.holds.occupancy);
  }

  const kindOf = (look) =>
    look.cause === null ? "read" : look.cause === "same-content" ? "lucky" : "stale";
  const writerWords = (writer) =>
    writer
      ? `position ${writer.position} of ${writer.request} ` +
        `(occupancy ${writer.occupancy}, written in step ${writer.step + 1})`
      : "nothing: nobody wrote it";
  const lookWords = (look) =>
    `${look.mode} of ${look.request === null ? "a padded row" : look.request} ` +
    `at position ${look.position} reads it for position ${look.stands_for}`;
  const cellWords = (cell, column) => {
    const words = [`row ${cell.row}, step ${steps[column].index + 1}: ${writerWords(cell.holds)}`];
    if (cell.written) words.push("written in this step");
    if (cell.look) {
      words.push(`${kindOf(cell.look) === "stale" ? "STALE READ: " : ""}${lookWords(cell.look)}`);
    }
    return words.join("; ");
  };

  // The table.
  const grid = document.getElementById("grid");
  const cells = new Map();
  const key = (column, row) => `${column}/${row}`;
  const isFocus = (column, row) =>
    data.focus !== null && data.focus.column === column && data.focus.row === row;

  const drawCell = (column, row) => {
    const cell = states[column].get(row);
    const classes = ["cell"];
    const node = make("td", { role: "gridcell", tabindex: "-1" });
    node.setAttribute("aria-label", cellWords(cell, column));
    node.title = cellWords(cell, column);
    if (cell.holds) {
      classes.push("held", ...lookOf(cell.holds.occupancy).split(" "));
      const name = make("b", { class: "name" });
      name.textContent = cell.holds.request;
      node.append(
        make(
          "span",
          { class: "line" },
          make("span", { class: "who" }, name, make("sub", {}, String(cell.holds.occupancy))),
          make("span", { class: "position" }, String(cell.holds.position)),
        ),
      );
    } else {
      node.append(make("span", { class: "nothing" }, cell.look ? "empty" : "–"));
    }
    if (cell.written) classes.push("written");
    if (cell.look) {
      const kind = kindOf(cell.look);
      classes.push(kind);
      node.append(
        make(
          "span",
          { class: `mark ${kind}` },
          icon(SHAPES[kind]),
          `for ${cell.look.stands_for}`,
          cell.looks > 1 ? make("small", {}, ` ×${cell.looks}`) : null,
        ),
      );
    }
    if (isFocus(column, row)) classes.push("focus");
    if (steps[column].gap) classes.push("gap");
    node.className = classes.join(" ");
    node.addEventListener("click", () => select(column, row, true));
    cells.set(key(column, row), node);
    return node;
  };

  const headers = [];
  const drawGrid = () => {
    const head = make("tr", { role: "row" }, make("th", { scope: "col", class: "corner" }, "step"));
    steps.forEach((step, column) => {
      const button = make(
        "button",
        { type: "button", tabindex: "-1", title: step.happened || step.operation },
        make("b", {}, String(step.index + 1)),
        make("span", {}, step.operation),
      );
      const classes = [step.gap ? "gap" : "", data.focus?.column === column ? "breaks" : ""];
      const header = make("th", { scope: "col", class: classes.join(" ").trim() }, button);
      button.addEventListener("click", () => select(column, selected.row, false));
      headers.push(header);
      head.append(header);
    });
    grid.append(make("thead", {}, head));
    let body = null;
    let slot = null;
    for (const row of data.rows) {
      if (slotOf(row) !== slot) {
        slot = slotOf(row);
        body = make("tbody", { "data-slot": slot });
        const lane = make("tr", { role: "row", class: "lane" });
        const name = slot === 0 ? "slot 0 (padding)" : `slot ${slot}`;
        lane.append(make("th", { scope: "rowgroup" }, name));
        steps.forEach((step, column) => {
          const tenant = step.tenants.find((one) => one.lease.slot === slot);
          const classes = [step.gap ? "gap" : ""];
          const place = make("td", {});
          if (tenant) {
            classes.push("held", lookOf(tenant.lease.occupancy));
            place.title =
              `slot ${slot} is lent to ${tenant.lease.request}, ` +
              `occupancy ${tenant.lease.occupancy}`;
            const before = column && steps[column - 1].tenants.find((t) => t.lease.slot === slot);
            if (!before || before.lease.occupancy !== tenant.lease.occupancy) {
              const who = make("b", { class: "name" });
              who.textContent = tenant.lease.request;
              place.append(who, make("sub", {}, String(tenant.lease.occupancy)));
            }
          }
          place.className = classes.join(" ").trim();
          lane.append(place);
        });
        body.append(lane);
        grid.append(body);
      }
      const line = make("tr", { role: "row", "data-row": row });
      line.append(make("th", { scope: "row" }, `row ${row}`));
      steps.forEach((_, column) => line.append(drawCell(column, row)));
      body.append(line);
    }
  };

  // What is beside the table.
  const fact = (list, term, ...words) =>
    list.append(make("dt", {}, term), make("dd", {}, ...words));
  const showButton = (writer, row) => {
    const column = steps.findIndex((step) => step.index === writer.step);
    if (column < 0) return make("span", { class: "muted" }, " This step is not shown.");
    const button = make("button", { type: "button" }, `Show step ${writer.step + 1}`);
    button.addEventListener("click", () => select(column, row, true));
    return button;
  };
  const drawDetail = () => {
    const title = document.getElementById("detail-title");
    const place = document.getElementById("detail");
    place.replaceChildren();
    if (selected.row === null) {
      title.textContent = "Row";
      place.append(make("p", { class: "muted" }, "The target has no ring."));
      return;
    }
    const cell = states[selected.column].get(selected.row);
    const step = steps[selected.column];
    title.textContent = `Row ${cell.row} after step ${step.index + 1}`;
    const list = make("dl", { class: "facts" });
    fact(list, "Slot", `${slotOf(cell.row)}, offset ${cell.row % data.stride}`);
    if (cell.look) {
      const kind = kindOf(cell.look);
      const cause = cell.look.cause;
      fact(
        list,
        "Read",
        `The ${lookWords(cell.look)}.`,
        cell.looks > 1 ? ` It is read ${plural(cell.looks, "time")} in this step.` : "",
      );
      fact(list, "Found", make("span", {}, `${writerWords(cell.look.held)}.`));
      if (cause !== null) {
        const badge = make("p", { class: `verdict ${kind}` }, icon(SHAPES[kind]));
        badge.append(`${kind === "stale" ? "Stale" : "Not its own"}: ${data.causes[cause]}.`);
        list.append(make("dt", {}, "So"), make("dd", {}, badge));
      }
    }
    const holds = make("dd", { id: "writer" });
    if (cell.holds) {
      const chip = make("span", { class: `chip held ${lookOf(cell.holds.occupancy)}` });
      const name = make("b", {});
      name.textContent = cell.holds.request;
      chip.append(name, make("sub", {}, String(cell.holds.occupancy)));
      holds.append(chip, ` position ${cell.holds.position}`, make("br"));
      holds.append(
        cell.holds.step === step.index
          ? "written in this step"
          : `written in step ${cell.holds.step + 1}`,
        `, occupancy ${cell.holds.occupancy} `,
      );
      if (cell.holds.step !== step.index) holds.append(showButton(cell.holds, cell.row));
    } else {
      holds.append("nothing: nobody wrote it");
    }
    list.append(make("dt", {}, "Writer"), holds);
    place.append(list);
    if (step.happened) {
      place.append(make("p", { class: "muted" }, `Step ${step.index + 1}: ${step.happened}.`));
    }
  };

  const drawTree = () => {
    const place = document.getElementById("tree");
    place.replaceChildren();
    const pool = pools[selected.column];
    if (!pool) {
      place.append(make("p", { class: "muted" }, "The log has no snapshot of the tree."));
      return;
    }
    if (!pool.nodes.length) {
      place.append(make("p", { class: "muted" }, "The tree is empty."));
      return;
    }
    const longest = Math.max(...pool.nodes.map((node) => node.end), 1);
    const body = make("tbody", {});
    for (const node of pool.nodes) {
      const label = make("span", { class: "label" });
      label.textContent = node.label;
      const bar = make("span", { class: node.tombstone ? "bar tombstone" : "bar" });
      bar.style.left = `${(100 * node.start) / longest}%`;
      bar.style.width = `${(100 * (node.end - node.start)) / longest}%`;
      const locks = make("td", { class: "locks" });
      if (node.full_lock || node.swa_lock) {
        locks.append(icon(SHAPES.lock), `full ${node.full_lock}, swa ${node.swa_lock}`);
      } else {
        locks.append(make("span", { class: "muted" }, "none"));
      }
      const name = make("th", { scope: "row" }, label);
      name.style.paddingInlineStart = `${node.depth * 1.1}em`;
      body.append(
        make(
          "tr",
          { class: node.tombstone ? "dead" : null },
          name,
          make("td", { class: "span" }, make("span", { class: "track" }, bar)),
          make("td", { class: "number" }, node.pages.join(", ")),
          locks,
          make("td", {}, node.tombstone ? make("span", { class: "stone" }, "tombstone") : "live"),
        ),
      );
    }
    const head = make("tr", {});
    for (const word of ["tokens", `positions 0 to ${longest}`, "pages", "locks", "SWA"]) {
      head.append(make("th", { scope: "col" }, word));
    }
    place.append(make("table", { class: "tree" }, make("thead", {}, head), body));
    if (pool.hidden) {
      place.append(make("p", { class: "note" }, `${plural(pool.hidden, "more node")} not shown.`));
    }
  };

  const occupancyOf = (request, column) => {
    const tenant = steps[column].tenants.find((one) => one.lease.request === request);
    return tenant ? tenant.lease.occupancy : null;
  };
  const drawPool = () => {
    const place = document.getElementById("pool");
    place.replaceChildren();
    const step = steps[selected.column];
    const pool = pools[selected.column];
    const slots = make("ul", { class: "slots" });
    for (const tenant of step.tenants) {
      const lease = tenant.lease;
      const name = make("b", {});
      name.textContent = lease.request;
      const chip = make("span", { class: `chip held ${lookOf(lease.occupancy)}` }, name);
      chip.append(make("sub", {}, String(lease.occupancy)));
      slots.append(
        make(
          "li",
          {},
          `slot ${lease.slot} `,
          chip,
          ` ${tenant.computed_len} tokens computed, ${lease.matched_len} of ` +
            `${lease.prompt_len} reused${tenant.computed_len < lease.prompt_len ? ", in its prefill" : ""}`,
        ),
      );
    }
    if (pool) {
      const free = pool.free_slots;
      const words = free.length > 12 ? plural(free.length, "slot") : `slot ${free.join(", ")}`;
      if (free.length) slots.append(make("li", { class: "muted" }, `${words} free`));
    }
    place.append(slots);
    if (pool) {
      if (pool.pages.length) {
        const map = make("ol", { class: "pages", "aria-label": "Pages of the full pool" });
        for (const [page, kind, request] of pool.pages) {
          const item = make("li", { class: kind });
          const owner = kind === "request" ? request : kind;
          item.title = `page ${page}: ${owner}`;
          item.textContent = page;
          if (kind === "request") {
            const occupancy = occupancyOf(request, selected.column);
            if (occupancy !== null) item.className = `request held ${lookOf(occupancy)}`;
          }
          map.append(item);
        }
        place.append(map);
      }
      const counts = pool.counts;
      place.append(
        make(
          "p",
          { class: "counts" },
          make("span", { class: "key free" }),
          `free ${counts.free} `,
          make("span", { class: "key tree" }),
          `tree ${counts.tree} `,
          make("span", { class: "key request" }),
          `requests ${counts.request} `,
          make("span", { class: "muted" }, "pages of the full pool"),
        ),
      );
      const own = Object.entries(pool.counters).map(([name, size]) => `${name} ${size}`);
      if (own.length) {
        place.append(make("p", { class: "muted" }, `The engine counts: ${own.join(", ")} tokens.`));
      }
    }
    const lent = Object.entries(step.lent).map(([name, tokens]) => `${tokens} of ${name}`);
    if (lent.length) place.append(make("p", { class: "muted" }, `Tokens lent: ${lent.join(", ")}.`));
    if (!pool && !lent.length && !step.tenants.length) {
      place.append(make("p", { class: "muted" }, "The log has no snapshot of the pools."));
    }
  };

  // Where the reader is.
  const startRow = data.focus?.row ?? null;
  const selected = {
    column: data.focus ? data.focus.column : steps.length - 1,
    row: startRow ?? (data.rows.length ? data.rows[0] : null),
  };

  const mark = () => {
    for (const node of grid.querySelectorAll(".now, .chosen, .origin, .selected")) {
      node.classList.remove("now", "chosen", "origin", "selected");
      if (node.hasAttribute("aria-selected")) node.setAttribute("aria-selected", "false");
    }
    for (const node of grid.querySelectorAll('td[tabindex="0"]')) node.tabIndex = -1;
    headers.forEach((header, column) => {
      const here = column === selected.column;
      header.classList.toggle("now", here);
      if (here) header.setAttribute("aria-current", "step");
      else header.removeAttribute("aria-current");
    });
    for (const row of data.rows) cells.get(key(selected.column, row)).classList.add("now");
    if (selected.row === null) return;
    const node = cells.get(key(selected.column, selected.row));
    node.classList.add("selected");
    node.setAttribute("aria-selected", "true");
    node.tabIndex = 0;
    node.parentElement.classList.add("chosen");
    const state = states[selected.column].get(selected.row);
    const writer = state.look && state.look.held ? state.look.held : state.holds;
    if (writer) {
      const origin = steps.findIndex((step) => step.index === writer.step);
      if (origin >= 0) cells.get(key(origin, selected.row)).classList.add("origin");
    }
  };

  const select = (column, row, focus) => {
    if (!steps.length) return;
    selected.column = Math.max(0, Math.min(steps.length - 1, column));
    selected.row = row;
    const step = steps[selected.column];
    const where = document.getElementById("where");
    where.replaceChildren(
      make("b", {}, `Step ${step.index + 1}`),
      make("span", {}, ` ${step.operation}`),
    );
    document.getElementById("back").disabled = selected.column === 0;
    document.getElementById("first").disabled = selected.column === 0;
    document.getElementById("forward").disabled = selected.column === steps.length - 1;
    document.getElementById("last").disabled = selected.column === steps.length - 1;
    mark();
    drawDetail();
    drawTree();
    drawPool();
    const node = cells.get(key(selected.column, selected.row));
    if (node && focus) node.focus({ preventScroll: true });
    // Only the table scrolls: the page stays where the reader has put it.
    const scroll = document.getElementById("scroll");
    const shown = node || headers[selected.column];
    const box = scroll.getBoundingClientRect();
    const at = shown.getBoundingClientRect();
    if (at.right > box.right) scroll.scrollLeft += at.right - box.right + 8;
    const margin = 96; // the row's name, which stays at the left
    if (at.left < box.left + margin) scroll.scrollLeft -= box.left + margin - at.left;
    if (at.bottom > box.bottom) scroll.scrollTop += at.bottom - box.bottom + 8;
    if (at.top < box.top + 48) scroll.scrollTop -= box.top + 48 - at.top;
  };
  const moveRow = (by) => {
    const at = data.rows.indexOf(selected.row);
    const next = Math.max(0, Math.min(data.rows.length - 1, at + by));
    select(selected.column, data.rows[next], true);
  };
  const toWriter = () => {
    if (selected.row === null) return;
    const cell = states[selected.column].get(selected.row);
    const writer = cell.look && cell.look.held ? cell.look.held : cell.holds;
    const column = writer ? steps.findIndex((step) => step.index === writer.step) : -1;
    if (column >= 0) select(column, selected.row, true);
  };

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const inGrid = grid.contains(event.target);
    if (event.target.closest("pre")) return;
    const moves = {
      ArrowLeft: () => select(selected.column - 1, selected.row, inGrid),
      ArrowRight: () => select(selected.column + 1, selected.row, inGrid),
      Home: () => select(0, selected.row, inGrid),
      End: () => select(steps.length - 1, selected.row, inGrid),
    };
    if (inGrid && event.target.tagName === "TD") {
      Object.assign(moves, {
        ArrowUp: () => moveRow(-1),
        ArrowDown: () => moveRow(1),
        Enter: toWriter,
        " ": toWriter,
      });
    }
    if (event.key in moves) {
      event.preventDefault();
      moves[event.key]();
    }
  });
  const on = (id, action) => document.getElementById(id)?.addEventListener("click", action);
  on("first", () => select(0, selected.row, false));
  on("back", () => select(selected.column - 1, selected.row, false));
  on("forward", () => select(selected.column + 1, selected.row, false));
  on("last", () => select(steps.length - 1, selected.row, false));
  on("broken", () => {
    if (data.focus) select(data.focus.column, data.focus.row ?? selected.row, false);
  });

  drawGrid();
  select(selected.column, selected.row, false);
})();
