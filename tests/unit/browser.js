// Problems of an open page, as a list of texts: what leaves its card or the window, and text of pictures without contrast.
() => {
  const problems = [];
  const say = (element) => {
    const classes = element.getAttribute("class");
    return `<${element.tagName.toLowerCase()}${classes ? ` class="${classes}"` : ""}> "${element.textContent.trim().slice(0, 40)}"`;
  };
  const scrolls = (element) => ["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX);

  // --- widths
  if (document.documentElement.scrollWidth > window.innerWidth)
    problems.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${window.innerWidth}`);
  // The part of a card in which this element may be: the card, or the nearest part that scrolls inside of it.
  const limit = (element, card) => {
    for (let above = element.parentElement; above && above !== card; above = above.parentElement) if (scrolls(above)) return null;
    return card.getBoundingClientRect();
  };
  const reported = new Set();
  const outside = (box, card, element, what) => {
    if (!box.width || reported.has(element)) return;
    if (box.right <= card.right + 0.5 && box.left >= card.left - 0.5) return;
    reported.add(element);
    problems.push(`${what} leaves its card (${box.left.toFixed()} to ${box.right.toFixed()}, card to ${card.right.toFixed()}): ${say(element)}`);
  };
  for (const card of document.querySelectorAll("header, section")) {
    for (const element of card.querySelectorAll("*")) {
      const edge = limit(element, card);
      if (!edge || !element.checkVisibility()) continue;
      outside(element.getBoundingClientRect(), edge, element, "an element");
      for (const child of element.childNodes) {
        if (child.nodeType !== Node.TEXT_NODE || !child.data.trim() || scrolls(element)) continue;
        const range = document.createRange();
        range.selectNodeContents(child);
        outside(range.getBoundingClientRect(), edge, element, "text");
      }
    }
  }
  if (!document.querySelector("header, section")) problems.push("the page has no card");

  // --- contrast of text in pictures, which axe-core does not check
  const parse = (colour) => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    return parts.length < 3 ? null : { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const mix = (over, under, alpha) => over.map((value, index) => value * alpha + under[index] * (1 - alpha));
  const ground = (element) => {
    for (let above = element; above; above = above.parentElement) {
      const colour = parse(getComputedStyle(above).backgroundColor);
      if (colour && colour.alpha === 1) return colour.rgb;
    }
    return [255, 255, 255];
  };
  for (const picture of document.querySelectorAll("svg")) {
    const shapes = [...picture.querySelectorAll("rect, path, circle, polygon")].filter((shape) => !shape.closest("defs, clipPath, title"));
    for (const text of picture.querySelectorAll("text")) {
      if (!text.textContent.trim() || !text.checkVisibility()) continue;
      const box = text.getBoundingClientRect();
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      let below = ground(picture);
      for (const shape of shapes) {
        if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
        const area = shape.getBoundingClientRect();
        if (x < area.left || x > area.right || y < area.top || y > area.bottom) continue;
        const style = getComputedStyle(shape);
        const fill = parse(style.fill);
        if (style.fill === "none" || !fill) continue;
        const point = new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse());
        if (!shape.isPointInFill(point)) continue;
        below = mix(fill.rgb, below, fill.alpha * Number(style.fillOpacity) * Number(style.opacity));
      }
      const style = getComputedStyle(text);
      const ink = parse(style.fill);
      const ratio = ink ? contrast(mix(ink.rgb, below, ink.alpha * Number(style.opacity)), below) : 0;
      if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)} of text in a picture: ${say(text)}`);
    }
  }
  return problems;
}
