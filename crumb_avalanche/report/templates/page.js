"use strict";
(function () {
  // "1,234", "12.3 \u00b1 4.5" (sorted by its mean) and "3e-4"; anything else is text.
  const NUMBER = /^([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)(?:\s*\u00b1.*)?$/i;

  function keyOf(cell) {
    const text = (cell.dataset.value ?? cell.textContent).trim();
    const found = NUMBER.exec(text);
    return { text, number: found ? Number(found[1].replaceAll(",", "")) : null };
  }

  function compare(a, b) {
    if (a.number !== null && b.number !== null) return a.number - b.number;
    if (a.number !== null || b.number !== null) return a.number !== null ? -1 : 1;
    return a.text.localeCompare(b.text, "en", { numeric: true });
  }

  function sort(table, column, sign) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row.cells[column]) }));
    rows.sort((a, b) => {
      if (!a.key.text || !b.key.text) return !a.key.text - !b.key.text; // empty cells last, both ways
      return sign * compare(a.key, b.key);
    });
    body.append(...rows.map((item) => item.row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sort(table, column, up ? 1 : -1);
      });
    });
  }

  // Pointing at a row, or at a curve, shows what belongs to the same group of runs.
  function light(group) {
    for (const node of document.querySelectorAll("[data-group]")) {
      node.classList.toggle("lit", node.dataset.group === group);
    }
    for (const figure of document.querySelectorAll("figure")) {
      figure.classList.toggle("choosing", figure.querySelector("[data-group].lit") !== null);
    }
  }
  for (const node of document.querySelectorAll("[data-group]")) {
    node.addEventListener("pointerenter", () => light(node.dataset.group));
    node.addEventListener("pointerleave", () => light(null));
  }
})();
