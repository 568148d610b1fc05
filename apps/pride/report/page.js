// Draws the charts of a report: the numbers are in #numbers, each chart has a place of its own.
// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const DASHES = [[], [7, 4], [2, 3]];
  const COLORS = 8;
  const LABELS_FROM = 520;  // width from which names stand beside the lines
  const sections = JSON.parse(document.getElementById("numbers").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = [];  // {plot, chart, section}

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (section, index) => section.palette[dark.matches ? 1 : 0][index % COLORS];
  const dash = (index) => DASHES[Math.floor(index / COLORS) % DASHES.length];
  const text = (value) => value === 0 ? "0" : String(Number(value.toPrecision(4)));

  // One row of x for all series, gaps where a series has no value there.
  function align(chart) {
    const xs = [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
    const row = (s, key) => {
      const at = new Map(s.x.map((x, i) => [x, s[key][i]]));
      return xs.map((x) => at.has(x) ? at.get(x) : null);
    };
    return {
      data: [xs, ...chart.series.map((s) => row(s, "y"))],
      low: chart.series.map((s) => row(s, "low")),
      high: chart.series.map((s) => row(s, "high")),
    };
  }

  function clipped(plot, body) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    body(ctx);
    ctx.restore();
  }

  function drawBands(plot, rows, paint) {
    clipped(plot, (ctx) => {
      ctx.globalAlpha = 0.14;
      rows.low.forEach((low, k) => {
        if (!plot.series[k + 1].show) return;
        const at = plot.data[0].map((_, i) => i).filter((i) => low[i] != null && rows.high[k][i] != null);
        if (at.length < 2) return;
        const point = (row, i) => [plot.valToPos(plot.data[0][i], "x", true), plot.valToPos(row[i], "y", true)];
        ctx.fillStyle = paint(k);
        ctx.beginPath();
        at.forEach((i) => ctx.lineTo(...point(rows.high[k], i)));
        at.reverse().forEach((i) => ctx.lineTo(...point(low, i)));
        ctx.fill();
      });
    });
  }

  function drawBars(plot, rows, paint) {
    clipped(plot, (ctx) => {
      ctx.lineWidth = 2 * devicePixelRatio;
      rows.low.forEach((low, k) => {
        if (!plot.series[k + 1].show) return;
        ctx.strokeStyle = paint(k);
        low.forEach((value, i) => {
          if (value == null || value === rows.high[k][i]) return;
          const x = plot.valToPos(plot.data[0][i], "x", true);
          ctx.beginPath();
          ctx.moveTo(x, plot.valToPos(value, "y", true));
          ctx.lineTo(x, plot.valToPos(rows.high[k][i], "y", true));
          ctx.stroke();
        });
      });
    });
  }

  function shorten(ctx, words, width) {
    if (ctx.measureText(words).width <= width) return words;
    let n = words.length;
    while (n > 1 && ctx.measureText(words.slice(0, n) + "…").width > width) --n;
    return words.slice(0, n) + "…";
  }

  // Names beside the last values, moved apart where they would touch.
  function drawNames(plot, chart, room, paint) {
    const { ctx, bbox } = plot, dpr = devicePixelRatio, line = 14 * dpr;
    const names = [];
    chart.series.forEach((s, k) => {
      const values = plot.data[k + 1];
      let last = values.length - 1;
      while (last >= 0 && values[last] == null) --last;
      if (last < 0 || !plot.series[k + 1].show) return;
      const bottom = bbox.top + bbox.height;
      const y = Math.min(Math.max(plot.valToPos(values[last], "y", true), bbox.top), bottom);
      names.push({ k, y, wanted: y, x: plot.valToPos(plot.data[0][last], "x", true) });
    });
    names.sort((a, b) => a.y - b.y);
    let free = bbox.top;
    for (const name of names) free = (name.y = Math.max(name.y, free)) + line;
    let floor = bbox.top + bbox.height + line / 2;
    for (const name of [...names].reverse()) floor = (name.y = Math.min(name.y, floor)) - line;
    const left = bbox.left + bbox.width + 12 * dpr;
    ctx.save();
    ctx.font = `${12 * dpr}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    for (const { k, x, y, wanted } of names) {
      ctx.strokeStyle = ctx.fillStyle = paint(k);
      ctx.globalAlpha = 0.4;
      ctx.lineWidth = dpr;
      ctx.beginPath();
      ctx.moveTo(x + 5 * dpr, wanted);
      ctx.lineTo(left - 3 * dpr, y);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.fillText(shorten(ctx, chart.series[k].name, (room - 16) * dpr), left, y);
    }
    ctx.restore();
  }

  // What is nearest to the pointer, in words.
  function tip(plot, chart, rows, box) {
    const { left, top } = plot.cursor;
    let best = null;
    if (left >= 0) {
      chart.series.forEach((s, k) => plot.data[0].forEach((x, i) => {
        const y = plot.data[k + 1][i];
        if (y == null || !plot.series[k + 1].show) return;
        const px = plot.valToPos(x, "x"), py = plot.valToPos(y, "y");
        const far = Math.hypot((px - left) * (chart.points ? 1 : 2), py - top);
        if (far < 60 && (best === null || far < best.far)) best = { far, k, i, x, y, px, py };
      }));
    }
    box.hidden = best === null;
    if (best === null) return;
    const spread = rows.high[best.k][best.i] - best.y;
    box.textContent = `${chart.series[best.k].name}: ${text(best.y)}${spread > 0 ? " ± " + text(spread) : ""}` +
      ` at ${text(best.x)} ${chart.x.label}`;
    const over = plot.over, right = best.px > over.clientWidth / 2;
    box.style.top = `${over.offsetTop + Math.max(best.py - 44, 0)}px`;
    box.style.left = right ? "auto" : `${over.offsetLeft + best.px + 10}px`;
    box.style.right = right ? `${box.parentNode.clientWidth - over.offsetLeft - best.px + 10}px` : "auto";
  }

  function axis(spec, side) {
    const font = "12px system-ui, sans-serif";
    const made = {
      label: spec.label, font, labelFont: font, labelSize: 22, labelGap: side === 3 ? 2 : 0,
      size: side === 3 ? 48 : 32, stroke: css("--soft"),
      grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), size: 4 },
      values: (_, splits) => splits.map((v) => v == null ? "" : text(v)),
    };
    if (spec.ticks.length > 0) {
      made.splits = () => spec.ticks;
      made.filter = (_, splits) => splits;
      // on a narrow screen every second one would touch the next
      made.values = (plot, splits) => {
        const step = Math.ceil(splits.length * 42 / Math.max(plot.bbox.width / devicePixelRatio, 1));
        return splits.map((v, i) => i % step === 0 ? text(v) : "");
      };
    }
    return made;
  }

  function draw(section, chart) {
    const place = document.getElementById(`${section.id}-${chart.id}`);
    place.textContent = "";
    const width = place.clientWidth, named = width >= LABELS_FROM;
    const room = named ? 132 : 12;
    const paint = (k) => color(section, chart.series[k].color);
    const rows = align(chart);
    const box = document.createElement("div");
    box.className = "tip";
    box.hidden = true;
    const scale = (spec) => ({
      time: false, distr: spec.log2 ? 3 : 1, log: 2, range: () => [spec.min, spec.max],
    });
    const plot = new uPlot({
      width, height: named ? 340 : 300, padding: [12, room, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, x: false, y: false },
      focus: { alpha: 0.2 },
      scales: {
        x: scale(chart.x),
        y: scale(chart.y),
      },
      axes: [axis(chart.x, 2), axis(chart.y, 3)],
      series: [{}, ...chart.series.map((s, k) => ({
        label: s.name, stroke: paint(k), width: 2,
        dash: chart.points ? [] : dash(s.color), spanGaps: true, show: !section.hidden.has(s.color),
        paths: chart.points ? () => null : undefined,
        points: {
          show: chart.points || s.x.length < 9, size: chart.points ? 9 : 6, width: 2,
          fill: dash(s.color).length > 0 ? css("--panel") : paint(k),  // hollow where lines are dashed
        },
      }))],
      hooks: {
        drawAxes: [(u) => { if (!chart.points) drawBands(u, rows, paint); }],
        draw: [(u) => {
          if (chart.points || chart.x.log2) drawBars(u, rows, paint);
          if (named) drawNames(u, chart, room, paint);
        }],
        setCursor: [(u) => tip(u, chart, rows, box)],
      },
    }, rows.data, place);
    place.append(box);
    drawn.push({ plot, chart, section, place });
  }

  // A button for each method: hides its lines in all charts of the section, or brings them out.
  function keys(section) {
    const list = document.getElementById(`${section.id}-keys`);
    list.textContent = "";
    section.labels.forEach((label, index) => {
      const button = document.createElement("button");
      const pattern = dash(index).join(" ");
      button.innerHTML = '<svg width="26" height="8"><path d="M0 4H26" stroke-width="3" fill="none"/></svg>';
      const path = button.querySelector("path");
      path.setAttribute("stroke", color(section, index));
      path.setAttribute("stroke-dasharray", pattern);
      button.append(label);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!section.hidden.has(index)));
      const each = (body) => drawn.filter((d) => d.section === section).forEach((d) =>
        d.chart.series.forEach((s, k) => { if (s.color === index) body(d.plot, k + 1); }));
      button.onclick = () => {
        const hide = !section.hidden.has(index);
        section.hidden[hide ? "add" : "delete"](index);
        button.setAttribute("aria-pressed", String(!hide));
        each((plot, k) => plot.setSeries(k, { show: !hide }));
      };
      button.onmouseenter = () => each((plot, k) => plot.setSeries(k, { focus: true }));
      button.onmouseleave = () => each((plot) => plot.setSeries(null, { focus: true }));
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
    });
  }

  function drawAll() {
    drawn.splice(0).forEach(({ plot }) => plot.destroy());
    for (const section of sections) {
      section.hidden ??= new Set();
      section.charts.forEach((chart) => draw(section, chart));
      keys(section);
    }
    document.documentElement.dataset.charts = String(drawn.length);
  }

  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar comes and goes
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", drawAll);
  drawAll();
})();
