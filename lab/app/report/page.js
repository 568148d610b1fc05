// Interaction with a report's charts: buttons hide lines, and the pointer shows values.
// SPDX-License-Identifier: Apache-2.0
"use strict";
for (const section of document.querySelectorAll("section")) {
  const drawn = [...section.querySelectorAll(".charts [data-color]")];
  for (const button of section.querySelectorAll(".keys button")) {
    const own = (part) => part.dataset.color === button.dataset.key;
    button.onclick = () => {
      const hide = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!hide));
      drawn.filter(own).forEach((part) => part.classList.toggle("hidden", hide));
    };
    button.onmouseenter = () => drawn.forEach((part) => part.classList.toggle("dim", !own(part)));
    button.onmouseleave = () => drawn.forEach((part) => part.classList.remove("dim"));
  }
}

for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg"), tip = plot.querySelector(".tip");
  const points = [...svg.querySelectorAll("[data-at]")].flatMap((line) => {
    const pixels = line.querySelector("path").getAttribute("d").slice(1).split("L");
    return line.dataset.at.split(",").map((values, i) => {
      const [left, top] = pixels[i].split(" ").map(Number), [x, y, spread] = values.split(" ");
      const text = `${line.dataset.name}: ${y}${Number(spread) > 0 ? " ± " + spread : ""} at ${x} ${svg.dataset.x}`;
      return { line, left, top, text };
    });
  });
  const show = (best) => {
    tip.hidden = !best;
    points.forEach(({ line }) => line.classList.toggle("near", line === best?.line));
  };
  plot.onpointerleave = () => show();
  plot.onpointermove = (event) => {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const far = (p) => Math.hypot(p.left * scale - event.clientX + box.left, p.top * scale - event.clientY + box.top);
    const near = points.filter((p) => !p.line.classList.contains("hidden") && far(p) < 40);
    if (near.length === 0) return show();
    const best = near.reduce((a, b) => far(b) < far(a) ? b : a);
    const left = best.left * scale, right = left > plot.clientWidth / 2;
    tip.textContent = best.text;
    tip.style.top = `${Math.max(best.top * scale - 44, 0)}px`;
    tip.style.left = right ? "auto" : `${left + 10}px`;
    tip.style.right = right ? `${plot.clientWidth - left + 10}px` : "auto";
    show(best);
  };
}
