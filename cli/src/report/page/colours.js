// Colours of the canvases: the two themes, the scale of sizes, and the colours of kinds, threads and call sites.

/// What canvases need of the theme; page.css has the same values.
const THEMES = {
  light: { ground: '#ffffff', empty: '#eef0f3', ink: '#1a1e23', faint: '#57606a', line: '#d7dce2', border: 0.7 },
  dark: { ground: '#14171b', empty: '#22272d', ink: '#e8eaed', faint: '#9aa4b0', line: '#343a42', border: 0.55 },
};
const FONT = '12px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const VIRIDIS = ['#440154', '#472d7b', '#3b528b', '#2c728e', '#21918c', '#28ae80', '#5ec962', '#addc30', '#fde725'];
/// Okabe and Ito's colours, told apart by colour-blind people; then grey for all others and for unknown.
const DISTINCT = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#f0e442', '#8a929c', '#b9c0c8'];
const OTHERS = 7, UNKNOWN = 8;
const SHADES = 48;

const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : prefersDark.matches;
};
const theme = () => (isDark() ? THEMES.dark : THEMES.light);
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const mix = (one, other, share) => one.map((value, at) => Math.round(value + (other[at] - value) * share));
const css = (rgb) => `rgb(${rgb.join(' ')})`;

/// Viridis from small to large, away from the ground: large blocks are dark on light, light on dark.
function shade(share) {
  const place = (isDark() ? 0.14 + 0.86 * share : 0.96 * (1 - share)) * (VIRIDIS.length - 1);
  const at = Math.min(VIRIDIS.length - 2, Math.floor(place));
  return mix(channels(VIRIDIS[at]), channels(VIRIDIS[at + 1]), place - at);
}
