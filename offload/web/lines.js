// Chooses lines of a text by their numbers: a click chooses one line, with Shift all lines up to it, and the
// fragment of the URL names them, as #L10-L20. The arrow keys move between the numbers, with Shift they choose.
{
  const list = document.querySelector("ol.text");
  const links = [...list.querySelectorAll("li > a")];
  const first = list.start;
  // The line that a range starts at, if any.
  let start = null;

  // Only one of the numbers is reached by the Tab key.
  const rove = at => links.forEach((link, other) => { link.tabIndex = other === at ? 0 : -1; });

  const mark = (one, other) => {
    start = one;
    const [low, high] = [Math.min(one, other), Math.max(one, other)];
    links.forEach((link, at) => {
      const isChosen = low <= first + at && first + at <= high;
      isChosen ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    });
    return [low, high];
  };

  const choose = (at, isRange) => {
    const line = first + at;
    const [low, high] = mark(isRange && start ? start : line, line);
    history.replaceState(null, "", low === high ? `#L${low}` : `#L${low}-L${high}`);
    links[at].focus({preventScroll: true});
  };

  const read = () => {
    const named = /^#L(\d{1,15})(?:-L(\d{1,15}))?$/.exec(location.hash);
    const [low] = named ? mark(Number(named[1]), Number(named[2] ?? named[1])) : mark(null, -1);
    rove(links[low - first] ? low - first : 0);
    if (named) links[low - first]?.parentElement.scrollIntoView();
  };

  list.addEventListener("mousedown", event => {
    // The browser would select the text up to here.
    if (event.shiftKey && links.includes(event.target)) event.preventDefault();
  });
  list.addEventListener("click", event => {
    const at = links.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(at, event.shiftKey);
  });
  list.addEventListener("keydown", event => {
    const at = links.indexOf(event.target) + ({ArrowUp: -1, ArrowDown: 1}[event.key] ?? NaN);
    if (!links[at] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.shiftKey ? choose(at, true) : links[at].focus();
    links[at].scrollIntoView({block: "nearest"});
  });
  list.addEventListener("focusin", event => rove(links.indexOf(event.target)));
  addEventListener("hashchange", read);
  list.classList.add("ranges");
  read();
}
