// One episode: its task, its group, its turns in time, and the conversation with branches side by side.

function showEpisode(entry) {
  const place = byId('episode');
  if (!entry) {
    place.replaceChildren(el('p', { class: 'note' }, 'No episode passes the filters. “Clear” shows all.'));
    return;
  }
  const { episode, turns: passing } = entry;
  const marks = new Set(passing.length < episode.turns.length ? passing : []);
  place.replaceChildren(
    episodeHead(episode), taskCard(tasks[episode.task]), course(entry), toolbar(entry),
    ...segments(episode.turns).map((segment) => segment.turn
      ? turnCard(segment.turn, marks.has(segment.turn))
      : el('div', { class: 'branches' }, [...segment.branches].map(([name, its]) =>
        el('div', { class: 'branch' }, el('h4', {}, `branch ${name}`), its.map((turn) => turnCard(turn, marks.has(turn))))))));
  place.scrollTop = 0;
  const first = passing[0];
  if (marks.size) showTurn(byId(`turn-${first.turn_index}`), first);
}

// A turn that a filter found: in sight, and open where what was searched for is in what is closed.
function showTurn(card, turn) {
  const seen = ['response_text', 'status_detail', 'cut'].some((name) => turn[name] !== undefined && matchesSearch(texts[turn[name]]));
  if (searched() && !seen) {
    for (const details of card.querySelectorAll('details')) {
      details.make();
      if (!matchesSearch(details.textContent)) details.open = false;
    }
  }
  card.scrollIntoView({ block: 'nearest' });
  card.scrollIntoView({ block: 'start' });
}

function episodeHead(episode) {
  const facts = [];
  const fact = (name, value, style = '') => facts.push(el('span', { class: style }, el('small', {}, name), ' ', value));
  for (const [name, value] of episode.scores ?? []) fact(name, short(value));
  if (episode.return !== undefined) fact('return', short(episode.return));
  fact('turns', short(episode.num_turns));
  fact('tokens', `${short(episode.num_prompt_tokens)} → ${short(episode.num_response_tokens)}`);
  if (episode.base_episode_id) fact('copied', `${short(episode.num_copied_tokens)} tokens of ${episode.base_episode_id}`);
  fact('took', seconds(episode.seconds));
  if (about.places.length > 1) fact('iteration', episode.iteration);
  const others = episode.group.length > 1 && el('p', { class: 'group' }, el('small', {}, `its group of ${episode.group.length}`), ' ',
    episode.group.map((other) => el('button', { type: 'button', class: other === episode ? 'chip on' : 'chip',
      'aria-current': other === episode ? 'true' : null, title: other.episode_id, on: { click: () => goTo(other) } },
    `#${other.sample} ${short(other.value)}`)));
  return el('header', { class: 'episode-head' },
    el('h2', {}, episode.episode_id, ' ', el('span', { class: `badge ${episode.status === 'ok' ? 'good' : 'bad'}` }, endOf(episode))),
    el('p', { class: 'facts' }, facts), others,
    episode.error && textBlock(episode.error, 'bad'),
    episode.failed && textBlock(`counts as 0: ${episode.failed}`, 'bad'));
}

function taskCard(task) {
  if (task.inputs === undefined) return el('p', { class: 'dim' }, 'its task is not at hand');
  return el('div', { class: 'task' }, jsonBlock(texts[task.inputs]),
    task.gold !== undefined && opener('gold', () => jsonBlock(texts[task.gold]), { open: texts[task.gold].length < 400 }));
}

function toolbar(entry) {
  const here = modesHere();
  const choose = here.map((name) => el('button', { type: 'button', class: name === mode ? 'on' : '', 'aria-pressed': String(name === mode),
    id: `mode-${name}`, on: { click: () => { mode = name; showEpisode(entry); } } }, MODES[name].name));
  const all = el('button', { type: 'button', id: 'open-all', on: { click: () => openAll(true) } }, 'Open all');
  const none = el('button', { type: 'button', id: 'close-all', on: { click: () => openAll(false) } }, 'Close all');
  const noText = here.length === 1 && about.texts_only.length > 0 &&
    el('span', { class: 'dim' }, 'no tokenizer at hand: text only');
  return el('div', { class: 'toolbar' }, here.length > 1 && el('span', { class: 'modes', role: 'group', 'aria-label': 'Colour of tokens' }, choose),
    here.length > 1 && legend(), noText, el('span', { class: 'push' }, all, none));
}

function openAll(open) {
  for (const details of byId('episode').querySelectorAll('details')) {
    if (open) details.make();
    else details.open = false;
  }
}

// Turns by turn_index; what ran in branches between two turns of the trunk stands together, by branch.
function segments(all) {
  const found = [];
  for (const turn of all) {
    const branch = (turn.branch ?? '').split('/').filter(Boolean);
    if (!branch.length) {
      found.push({ turn });
      continue;
    }
    if (!found.length || found.at(-1).turn) found.push({ branches: new Map() });
    const { branches } = found.at(-1);
    if (!branches.has(branch[0])) branches.set(branch[0], []);
    branches.get(branch[0]).push(turn);
  }
  return found;
}
