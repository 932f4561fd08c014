// One turn: who spoke, what was said, what it earned, and, opened, all that went in.

function turnCard(turn, passes) {
  const head = el('header', { class: 'turn-head' },
    el('span', { class: 'index' }, turn.turn_index),
    el('b', {}, turn.step ?? '?'),
    turn.role && el('span', { class: 'role' }, turn.role),
    turn.model_id && el('span', { class: 'dim' }, `${turn.model_id}@${turn.policy_version ?? '–'}`),
    turn.tool && el('span', { class: 'dim' }, `tool ${turn.tool}`),
    turn.act && el('span', { class: 'badge' }, turn.act),
    turn.round ? el('span', { class: 'dim' }, `round ${turn.round}`) : null,
    turn.status !== 'ok' && el('span', { class: 'badge bad' }, turn.status),
    turn.origin && turn.origin !== 'sampled' && el('span', { class: 'badge' }, turn.origin),
    el('span', { class: 'sizes dim' }, sizes(turn)));
  const speaks = turn.role ? roleClass(turn.role) : 'role-none';
  return el('section', { class: `turn ${speaks} ${passes ? 'passes' : ''} event-${turn.event}`,
    id: `turn-${turn.turn_index}`, 'aria-label': `turn ${turn.turn_index}, ${turn.step}` },
    head, said(turn), why(turn), earned(turn), changed(turn), opened(turn));
}

function sizes(turn) {
  const parts = [];
  if (turn.num_response_tokens !== undefined) parts.push(`${short(turn.num_prompt_tokens)} → ${short(turn.num_response_tokens)} tokens`);
  if (turn.ended_at !== undefined) parts.push(seconds(turn.ended_at - (turn.started_at ?? turn.queued_at ?? turn.ended_at)));
  return parts.join(' · ');
}

function said(turn) {
  if (turn.response_text === undefined) return null;
  const text = texts[turn.response_text];
  if (text === '') return el('div', { class: 'text dim' }, 'an empty reply');
  const block = textBlock(text, 'said');
  if (mode !== 'plain') colourTokens(block, turn);
  return block;
}

// What went wrong, what was cut from the prompt, and why the turn is not trained on.
function why(turn) {
  const rows = [];
  if (turn.status_detail !== undefined) rows.push(['why', texts[turn.status_detail]]);
  if (turn.cut !== undefined) rows.push(['cut from its prompt', cutWords(texts[turn.cut])]);
  if (turn.excluded !== undefined) rows.push(['not trained on', turn.excluded]);
  if (turn.no_reward_reason !== undefined && turn.no_reward_reason !== turn.excluded) rows.push(['no reward', turn.no_reward_reason]);
  if (!rows.length) return null;
  const plainTool = turn.event !== 'llm' && rows.every(([name]) => name === 'not trained on');
  return el('dl', { class: `why ${plainTool ? 'dim' : ''}` }, rows.map(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]));
}

function cutWords(json) {
  try {
    return Object.entries(JSON.parse(json)).map(([name, what]) =>
      `${name}: ${typeof what === 'object' && what ? Object.entries(what).map(([unit, n]) => `${short(n)} ${unit}`).join(', ') : what}`).join('; ');
  } catch {
    return json;
  }
}

function earned(turn) {
  const parts = [];
  const part = (name, value, style = '') => parts.push(el('span', { class: style }, el('small', {}, name), ' ', value));
  if (turn.reward !== undefined) part('reward', short(turn.reward));
  for (const [name, value] of turn.parts ?? []) part(name, short(value), 'dim');
  if (turn.return !== undefined) part('return', short(turn.return));
  if (turn.advantage !== undefined) part('advantage', signed(turn.advantage), turn.advantage < 0 ? 'minus' : turn.advantage > 0 ? 'plus' : '');
  for (const [name, value] of turn.channels ?? []) part(`credit ${name}`, signed(value), value < 0 ? 'minus' : value > 0 ? 'plus' : 'dim');
  if (turn.gap !== undefined) part('mean |gap|', short(turn.gap), 'dim');
  for (const [name, value] of turn.metrics ?? []) part(name, short(value), 'dim');
  return parts.length ? el('p', { class: 'earned' }, parts) : null;
}

// What became of the episode where this reply was changed: counterfactual plays.
function changed(turn) {
  if (!turn.interventions) return null;
  const rows = turn.interventions.map((i) => {
    const what = [i.op, i.alternative > 0 && `#${i.alternative}`, i.recipient !== undefined && `for turn ${i.recipient} alone`].filter(Boolean).join(' ');
    if (i.skipped) return [what, `not played: ${i.skipped}`];
    if (i.return === undefined) return [what, `its play has no return${i.status ? ` (${i.status})` : ''}`];
    return [what, [el('span', { class: i.effect > 0 ? 'plus' : i.effect < 0 ? 'minus' : 'dim' }, `worth ${signed(i.effect)}`),
      ` return ${short(i.return)} instead of ${short(i.base_return)}`, i.first_difference !== undefined ? `, other from turn ${i.first_difference} on` : ', nothing else changed',
      i.delivered !== undefined && opener('delivered instead', () => textBlock(texts[i.delivered]))]];
  });
  return el('dl', { class: 'changes' }, rows.map(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]));
}

function opened(turn) {
  const openers = [];
  if (turn.prompt !== undefined) {
    const prompt = prompts[turn.prompt];
    const cached = turn.num_cached_tokens ? `, ${short(turn.num_cached_tokens)} of its tokens cached` : '';
    openers.push(opener(`prompt: ${many(prompt.length, 'message')}${cached}`, () => el('div', { class: 'messages' },
      prompt.map(([role, text]) => el('div', { class: `message from-${/^\w+$/.test(role) ? role : 'other'}` },
        el('small', {}, role), textBlock(texts[text]))))));
  }
  if (turn.parsed !== undefined) openers.push(opener(turn.format_valid === false ? 'parsed leniently' : 'parsed', () => jsonBlock(texts[turn.parsed])));
  if (turn.tool_request !== undefined) openers.push(opener('asks', () => jsonBlock(texts[turn.tool_request]), { open: texts[turn.tool_request].length < 300 }));
  if (turn.tool_result !== undefined) openers.push(opener(`gets: ${many(texts[turn.tool_result].length, 'character')}`, () => jsonBlock(texts[turn.tool_result])));
  const more = { 'finish reason': turn.finish_reason, attempts: turn.attempts > 1 ? turn.attempts : undefined, sampling: turn.sampling,
    'reads turns': turn.parents?.join(', '), play: turn.instance, 'goes to': turn.recipients?.join(', '), 'of the act': turn.act_detail, queued: turn.queued_at && seconds(turn.queued_at), started: turn.started_at && seconds(turn.started_at),
    ended: turn.ended_at && seconds(turn.ended_at), 'replay of': turn.base_episode_id, 'replayed from turn': turn.replay_from_turn };
  const rows = Object.entries(more).filter(([, value]) => value !== undefined);
  if (rows.length) openers.push(opener('more', () => el('dl', { class: 'value' }, rows.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)])), { class: 'dim' }));
  return el('div', { class: 'openers' }, openers);
}
