"use strict";
// Everything is readable without this script; it only shows one panel at a time and opens what a link points to.
document.documentElement.classList.add("js");

function choose(chooser, index) {
  const select = chooser.querySelector("select");
  const panels = document.querySelectorAll(`[data-panel="${chooser.dataset.chooser}"]`);
  select.selectedIndex = Math.max(0, Math.min(index, panels.length - 1));
  panels.forEach((panel, at) => {
    panel.hidden = at !== select.selectedIndex;
    panel.open = at === select.selectedIndex;
  });
  chooser.querySelector('[data-step="-1"]').disabled = select.selectedIndex === 0;
  chooser.querySelector('[data-step="1"]').disabled = select.selectedIndex === panels.length - 1;
}

function reveal(id) {
  const target = id && document.getElementById(id);
  if (!target) return;
  const panel = target.closest("[data-panel]");
  if (panel) {
    const chooser = document.querySelector(`[data-chooser="${panel.dataset.panel}"]`);
    const panels = [...document.querySelectorAll(`[data-panel="${panel.dataset.panel}"]`)];
    choose(chooser, panels.indexOf(panel));
  }
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}

for (const chooser of document.querySelectorAll("[data-chooser]")) {
  const select = chooser.querySelector("select");
  chooser.hidden = false;
  select.addEventListener("change", () => choose(chooser, select.selectedIndex));
  for (const button of chooser.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => choose(chooser, select.selectedIndex + Number(button.dataset.step)));
  }
  choose(chooser, 0);
}

for (const button of document.querySelectorAll("[data-observations]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Close all observations" : "Open all observations";
    for (const found of button.closest("[data-panel]").querySelectorAll(".observation")) found.open = open;
  });
}

if (window.matchMedia("(max-width: 640px)").matches) {
  for (const fold of document.querySelectorAll(".fold")) fold.open = false;
}

const hash = () => reveal(decodeURIComponent(location.hash.slice(1)));
window.addEventListener("hashchange", hash);
hash();
