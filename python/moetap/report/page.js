// Reads numbers out of the drawings, at the pointer or with the arrow keys. The page shows all else
// without it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const number = new Intl.NumberFormat("en-US");
  const layer = (i) => `layer ${data.layers[i]}`;

  // What a drawing shows at a column and a row.
  function heat(run) {
    const mean = (run.present * data.top_k) / data.num_experts;
    const all = run.present * data.top_k;
    return (expert, i) => {
      const picks = run.picks[i][expert];
      return `${layer(i)}, expert ${expert}: ${number.format(picks)} picks, ` +
        `${(picks / mean).toFixed(2)}× the mean, ${((100 * picks) / all).toFixed(2)}% of the layer's`;
    };
  }

  function similarity(x, y) {
    const { runs, requests, cosine } = data.similarity;
    const name = (i) => (runs[i] === requests[i] ? requests[i] : `${runs[i]}: ${requests[i]}`);
    return `${name(y)} and ${name(x)}: cosine ${cosine[y][x].toFixed(4)}`;
  }

  const digits = { max_load: 2, variation: 3, entropy: 4, top_share: 3, dead: 0 };
  function panel(field) {
    const unit = field === "max_load" ? "×" : "";
    return (i) => layer(i) + ": " + data.runs
      .map((run) => `${run.name} ${run[field][i].toFixed(digits[field])}${unit}` +
        (field === "max_load" ? ` (expert ${run.hottest[i]})` : ""))
      .join(", ");
  }

  // Lets a pointer and the keys move through a drawing of so many columns and rows.
  function readable(id, text) {
    const svg = document.getElementById(id);
    if (!svg) return;
    const reading = document.getElementById(`${id}-reading`);
    const cursor = svg.querySelector(".cursor");
    const given = (name) => Number(svg.dataset[name] || 0);
    const columns = given("columns"), rows = given("rows") || 1, isGrid = given("rows") > 0;
    const width = isGrid ? given("cellX") * columns : given("width");
    const at = { x: 0, y: 0 };
    let read = false;
    reading.dataset.hint = isGrid ? "Point at a cell, or use the arrow keys." : "";

    function show(x, y) {
      at.x = Math.min(columns - 1, Math.max(0, x));
      at.y = Math.min(rows - 1, Math.max(0, y));
      reading.textContent = text(at.x, at.y);
      reading.classList.add("live");
      read = true;
      const step = width / columns;
      if (isGrid) {
        const wide = cursor.width.baseVal.value, high = cursor.height.baseVal.value;
        cursor.setAttribute("x", given("x") + (at.x + 0.5) * step - wide / 2);
        cursor.setAttribute("y", given("y") + (at.y + 0.5) * given("cellY") - high / 2);
      } else {
        cursor.setAttribute("transform", `translate(${given("x") + (at.x + 0.5) * step} 0)`);
      }
      cursor.style.visibility = "visible";
    }

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = isGrid ? 1 : svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale - given("x");
      const y = (event.clientY - box.top) * scale - given("y");
      const high = isGrid ? given("cellY") * rows : Infinity;
      if (x < 0 || x >= width || (isGrid && (y < 0 || y >= high))) return;
      show(Math.floor((x / width) * columns), isGrid ? Math.floor(y / given("cellY")) : 0);
    });
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      PageUp: [0, -10], PageDown: [0, 10], Home: [-Infinity, 0], End: [Infinity, 0] };
    svg.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
      if (!isGrid && move[1] !== 0) return;
      event.preventDefault();
      if (!read) show(0, 0);
      else show(at.x + move[0], at.y + move[1]);
    });
  }

  data.runs.forEach((run, i) => readable(`heat-${i}`, heat(run)));
  Object.keys(digits).forEach((field) => readable(`panel-${field}`, panel(field)));
  if (data.similarity) readable("similarity-grid", similarity);
  data.drift.forEach((drift, i) => {
    readable(`distance-${i}`, (x) => `${layer(x)}: distance ${drift.distance[x].toFixed(4)}, ` +
      `chance alone ${drift.noise[x].toFixed(4)}`);
    readable(`equal-${i}`, (x) => `${layer(x)}: ${(100 * drift.equal_picks[x]).toFixed(2)}% equal`);
  });
})();
