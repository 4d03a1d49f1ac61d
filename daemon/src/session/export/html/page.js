// The search and the switch of the page. Without it, everything else of the page works.
(() => {
  const nav = document.querySelector("nav");
  const [input, count, toggle] = ["input", "output", "button"].map((name) => nav.querySelector(name));
  const main = document.querySelector("main");
  const MOST = 5000;
  let matches = [];
  let at = -1;

  const paint = () => {
    count.value = input.value === "" ? "" : matches.length === 0 ? "not found" : `${at + 1} of ${matches.length}${matches.length === MOST ? "+" : ""}`;
    if (!CSS.highlights) return;
    CSS.highlights.set("found", new Highlight(...matches));
    CSS.highlights.set("now", matches[at] ? new Highlight(matches[at]) : new Highlight());
  };
  const go = (to) => {
    if (matches.length === 0) return;
    at = (to + matches.length) % matches.length;
    const place = matches[at].startContainer.parentElement;
    for (let box = place.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    place.scrollIntoView({ block: "center" });
    paint();
  };
  const search = () => {
    matches = [];
    at = -1;
    const words = input.value.toLowerCase();
    const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    while (words !== "" && matches.length < MOST && texts.nextNode()) {
      const node = texts.currentNode;
      const text = node.data.toLowerCase();
      // A few letters change their length in lower case: such texts are found, but not marked at the right place.
      for (let from = text.indexOf(words); from >= 0 && matches.length < MOST; from = text.indexOf(words, from + words.length)) {
        const range = document.createRange();
        range.setStart(node, Math.min(from, node.length));
        range.setEnd(node, Math.min(from + words.length, node.length));
        matches.push(range);
      }
    }
    paint();
    go(0);
  };

  let open = false;
  toggle.onclick = () => {
    open = !open;
    for (const box of main.querySelectorAll("details")) box.open = open;
    toggle.textContent = open ? "Collapse all" : "Expand all";
  };
  let waiting = 0;
  input.oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 150);
  };
  input.onkeydown = (event) => {
    if (event.key === "Enter") go(at + (event.shiftKey ? -1 : 1));
  };
  toggle.hidden = main.querySelector("details") === null;
  nav.hidden = false;
})();
