// How far updates moved a team: trust regions, shifts of contexts, what was promised and what came of it.

// By iteration and unit, the metrics shift/<unit>/<name>.
function shiftsOf(places) {
  return places.flatMap((place) => {
    const units = new Map();
    for (const [key, value] of Object.entries(place.metrics)) {
      const [kind, unit, name] = key.split('/');
      if (kind === 'shift' && name) units.set(unit, { ...units.get(unit), [name]: value });
    }
    return [...units].map(([unit, of]) => ({ unit, iteration: place.index, ...of }));
  });
}

function shiftCard(place) {
  const every = shiftsOf(about.places);
  if (!every.some((s) => s.radius !== undefined || s.lag_updates > 0)) return null;
  const shown = place.index === null ? every : shiftsOf([place]);
  const judged = every.filter((s) => s.outside !== undefined);
  const share = (of, holds) => `${Math.round((100 * of.filter(holds).length) / of.length)} %`;
  const facts = [];
  if (judged.length) {
    facts.push(`Of ${many(judged.length, 'update')} in this report with a trust region, ${share(judged, (s) => s.outside > 0)} are outside their radius, ${share(judged, (s) => s.rejected > 0)} were rejected and ${share(judged, (s) => s.partly > 0)} accepted in part.`);
  }
  if (concurrent()) {
    facts.push('In this team roles speak at the same time, in branches or before a join. The bounds on shifts and gains (shift budget, certificate) are proved for one speaker at a time, so here they are indications.');
  }
  return card('Trust regions and shift', facts.map((fact) => el('p', {}, fact)), shiftTable(shown), el('div', { class: 'two' },
    scatter(every, 'shift_budget', 'stale_gap', 'bound on the shift of contexts', 'stale gap'),
    scatter(every, 'ess_joint', 'stale_gap', 'effective share of rows', 'stale gap'),
    scatter(every, 'certificate_lcb', 'realised_gain', 'certificate', 'realised gain', true)));
}

function shiftTable(shown) {
  const decision = (s) => (s.rejected ? 'rejected' : s.partly ? `in part: ${short(s.kept_share)}` : s.accepted ? 'accepted' : '–');
  const between = (s) => (s.stale_gap === undefined ? '–' : `${short(s.stale_gap)} (${short(s.stale_low)} to ${short(s.stale_high)})`);
  const fell = (s) => (s.regressions === undefined ? '–' : `${Math.round(100 * s.regressions)} % fell, ${Math.round(100 * s.improvements)} % rose, p ${short(s.mcnemar_p)}`);
  const columns = [
    ['>iteration', 'iteration', (s) => s.iteration], ['unit', 'unit', (s) => s.unit], ['>divergence', 'divergence', (s) => short(s.divergence)],
    ['>radius', 'radius', (s) => short(s.radius)], ['decision', 'radius', decision], ['>teammates updated', 'lag_updates', (s) => short(s.lag_updates)],
    ['>shift budget', 'shift_budget', (s) => short(s.shift_budget)], ['>effective rows', 'ess_joint', (s) => short(s.ess_joint)],
    ['>stale gap', 'stale_gap', between], ['>promised', 'surrogate', (s) => short(s.surrogate)], ['>certificate', 'certificate_lcb', (s) => short(s.certificate_lcb)],
    ['>realised', 'realised_gain', (s) => short(s.realised_gain)], ['regressions', 'regressions', fell],
  ].filter(([, name]) => shown.some((s) => s[name] !== undefined));
  const rows = () => table(columns.map(([head]) => head), shown.map((s) => columns.map(([, , of]) => of(s) ?? '–')));
  return shown.length > 24 ? opener(`All ${short(shown.length)} updates`, rows) : rows();
}

// One dot for each update that has both numbers; `diagonal` is where they are equal.
function scatter(every, across, up, acrossLabel, upLabel, diagonal = false) {
  const points = every.filter((s) => s[across] !== undefined && s[up] !== undefined);
  if (points.length < 2) return null;
  const [xs, ys] = [points.map((p) => p[across]), points.map((p) => p[up])];
  const [x0, x1] = padded(Math.min(...xs), Math.max(...xs));
  const [y0, y1] = padded(Math.min(...ys), Math.max(...ys));
  const x = scale(x0, x1, SIZE.left + 8, SIZE.width - SIZE.right - 8);
  const y = scale(y0, y1, SIZE.height - SIZE.bottom, SIZE.top);
  const units = [...new Set(points.map((p) => p.unit))];
  const colour = (p) => COLOURS[units.indexOf(p.unit) % COLOURS.length];
  const [from, to] = [Math.max(x0, y0), Math.min(x1, y1)];
  const equal = diagonal && from < to && svg('line', { class: 'mark', x1: x(from), y1: y(from), x2: x(to), y2: y(to) }, svg('title', {}, 'equal'));
  const dots = points.map((p) => svg('circle', { cx: x(p[across]), cy: y(p[up]), r: 3.5, fill: colour(p), opacity: 0.75 },
    svg('title', {}, `${p.unit}, iteration ${p.iteration}: ${acrossLabel} ${short(p[across])}, ${upLabel} ${short(p[up])}`)));
  const chart = svg('svg', { class: 'chart', viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: 'img', 'aria-label': `${upLabel} against ${acrossLabel}` },
    axes(x, y, ticks(x0, x1), ticks(y0, y1), acrossLabel), equal || null, dots);
  return el('figure', {}, el('figcaption', { class: 'dim' }, `${upLabel} against ${acrossLabel}`), chart,
    units.length <= COLOURS.length && el('ul', { class: 'keys' }, units.map((unit, i) => el('li', {}, el('i', { class: 'swatch', style: { background: COLOURS[i] } }), unit))));
}

// Whether turns of one episode ran in branches, or a role began to speak before another had ended.
function concurrent() {
  return episodes.some((episode) => {
    const spoken = episode.turns.filter((t) => t.event === 'llm' && t.origin !== 'copied');
    const timed = spoken.filter((t) => t.started_at !== undefined && t.ended_at !== undefined).sort((a, b) => a.started_at - b.started_at);
    return spoken.some((t) => t.branch) || timed.some((t, i) => i > 0 && t.started_at < timed[i - 1].ended_at - 1e-6);
  });
}
