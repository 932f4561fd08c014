// Tabs, keys, and the start.

const TABS = ['overview', 'episodes', 'settings'];

function openTab(name) {
  for (const tab of TABS) {
    byId(tab).hidden = tab !== name;
    byId(`tab-${tab}`).setAttribute('aria-selected', String(tab === name));
    byId(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
  }
  document.body.dataset.tab = name;
  if (name === 'episodes') drawList();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  if (event.target.getAttribute?.('role') === 'tab' && /^Arrow(Left|Right)$/.test(event.key)) {
    const at = TABS.indexOf(document.body.dataset.tab) + (event.key === 'ArrowRight' ? 1 : -1);
    const name = TABS[(at + TABS.length) % TABS.length];
    openTab(name);
    byId(`tab-${name}`).focus();
    return;
  }
  if (event.key === '/') {
    openTab('episodes');
    byId('filter-text').focus();
    event.preventDefault();
    return;
  }
  if (document.body.dataset.tab !== 'episodes') return;
  const page = Math.max(1, Math.floor(byId('list').clientHeight / ROW) - 1);
  const inList = document.activeElement === byId('list');
  const steps = { j: 1, k: -1, ...(inList && { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }) }[event.key];
  if (steps === undefined) return;
  move(steps);
  event.preventDefault();
}

function debounced(action) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, 120);
  };
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
}

async function start() {
  const data = await load();
  observed = data.observed;
  const modes = modesHere();
  mode = modes[1] ?? 'plain';
  makeFilters(debounced(applyFilters));
  byId('loading').remove();
  document.querySelector('main').hidden = false;
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener('click', () => openTab(tab));
  byId('theme').addEventListener('click', toggleTheme);
  byId('list').addEventListener('scroll', drawList, { passive: true });
  addEventListener('resize', drawList);
  addEventListener('keydown', onKey);
  showOverview();
  const asked = decodeURIComponent(location.hash.slice(1));
  const linked = episodes.find((e) => e.episode_id === asked);
  current = linked ?? null;
  shown = found();
  openTab(linked ? 'episodes' : 'overview');
  applyFilters();
  document.body.dataset.ready = 'yes';
}

start().catch((error) => {
  const note = byId('loading') ?? document.body.appendChild(el('p', { class: 'note' }));
  note.textContent = `This page can't be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
