// Returns the inputs whose edges have too little contrast with what is behind them; axe-core looks at texts only.
() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const rgb = (color) => color.match(/[0-9.]+/g).map(Number);
  const luminance = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (first, second) => {
    const [high, low] = [luminance(first), luminance(second)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  return [...document.querySelectorAll("input[type=text], select, textarea")]
    .map((input) => [input.name, contrast(rgb(getComputedStyle(input).borderTopColor), behind(input.parentElement))])
    .filter(([, ratio]) => ratio < 3)
    .map(([name, ratio]) => `edge ${ratio.toFixed(2)}: ${name}`);
}
