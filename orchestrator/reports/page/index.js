"use strict";
// Opens the folds around the element that the address names, and shows the events that have all words of the filter.
(() => {
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let above = target; above; above = above.parentElement) if (above.tagName === "DETAILS") above.open = true;
    if (target && target.hidden) clear();
    if (target) target.scrollIntoView();
  };
  const words = document.getElementById("event-words");
  const rows = [...document.querySelectorAll("#events tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !wanted.every((word) => texts[index].includes(word));
      shown += !row.hidden;
    });
    document.getElementById("event-count").textContent = `${shown} of ${rows.length} events`;
  };
  const clear = () => {
    words.value = "";
    filter();
  };
  if (words) {
    words.parentElement.hidden = false;
    words.addEventListener("input", filter);
    filter();
  }
  addEventListener("hashchange", reveal);
  // The address may name the element already.
  addEventListener("click", (event) => event.target.closest?.('a[href^="#"]')?.hash === location.hash && reveal());
  for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
  reveal();
})();
