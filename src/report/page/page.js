// The page: which charts there are, and the controls that they share.

const view = { x: 'iteration', range: null, reach: 0 };
const finite = (list) => list.some((v) => v !== null);
const number = (value, write) => (value === null || value === undefined ? 'not finite' : write(value));

function last_iteration() {
  return Math.max(1, ...runs.map((run) => (run.steps.rows ? run.steps.iteration[run.steps.rows - 1] : 0)));
}

// A column of the steps: all that is kept, faintly, and the smoothed line.
function step_series(name) {
  return (run, { x, reach }) => {
    const base = run.means && reach > 0 ? run.means : run.steps;
    const values = typeof name === 'function' ? name : (columns) => columns[name];
    const list = [];
    if (reach > 0) list.push({ kind: 'raw', x: run.steps[x], y: values(run.steps) });
    list.push({ kind: 'line', x: base[x], y: smoothed(base.iteration, values(base), reach) });
    return list;
  };
}

function plain_series(name) {
  return (run, { x }) => [{ kind: 'line', x: run.steps[x], y: run.steps[name] }];
}

function waiting(columns) {
  return columns.iteration.map((_, i) => {
    const parts = [columns.data_wait[i], columns.communication_wait[i], columns.save_wait[i]].filter((v) => v !== null);
    return parts.length ? parts.reduce((a, b) => a + b) : null;
  });
}

// The test set is evaluated once, at the end of a run: a mark, no curve.
const is_test = (validation) => validation.set === 'test';
const loss_series = step_series('loss');
const three_digits = (value) => significant(value, 3);

const specs = [
  {
    id: 'loss', title: 'Loss', wide: true, log: true, columns: ['loss'], tick: (v) => significant(v, 4),
    series: (run, v) => [...loss_series(run, v), ...run.validations.map((c) => ({ kind: is_test(c) ? 'test' : 'validation', x: c[v.x], y: c.loss }))],
    describe: (run, i, iteration) => [
      ['training', number(run.steps.loss[i], (v) => v.toFixed(4))],
      ...run.validations.flatMap((c) => {
        const at = nearest(c.iteration, iteration);
        return at < 0 ? [] : [[runs.length > 1 ? c.set : `${c.set}, iteration ${grouped(c.iteration[at])}`, number(c.loss[at], (v) => v.toFixed(4))]];
      }),
    ],
  },
  {
    id: 'learning_rate', title: 'Learning rate', zero: true, columns: ['learning_rate'], tick: three_digits, series: plain_series('learning_rate'),
    describe: (run, i) => [['learning rate', number(run.steps.learning_rate[i], (v) => significant(v, 4))]],
  },
  {
    id: 'gradient_norm', title: 'Gradient norm', log: true, columns: ['gradient_norm'], tick: three_digits, series: step_series('gradient_norm'),
    describe: (run, i) => [['norm', number(run.steps.gradient_norm[i], (v) => significant(v, 4))]],
  },
  {
    id: 'throughput', title: 'Throughput', note: 'tokens/s', zero: true, columns: ['tokens_per_second'], tick: (v) => scaled(v), series: step_series('tokens_per_second'),
    describe: (run, i) => [
      ['tokens/s', number(run.steps.tokens_per_second[i], grouped)],
      ...(run.steps.flops_per_second[i] === null ? [] : [['rate', flops(run.steps.flops_per_second[i])]]),
      ...(run.steps.peak_share[i] === null ? [] : [['of peak', percent(run.steps.peak_share[i])]]),
    ],
  },
  {
    id: 'waiting', title: 'Waiting', note: 'share of the time', zero: true, columns: ['data_wait', 'communication_wait', 'save_wait'],
    tick: (v) => `${Number((v * 100).toPrecision(3))} %`, series: step_series(waiting),
    describe: (run, i) => [['for data', 'data_wait'], ['for other ranks', 'communication_wait'], ['for saves', 'save_wait']]
      .filter(([, name]) => run.steps[name][i] !== null).map(([label, name]) => [label, percent(run.steps[name][i])]),
  },
].filter((spec) => spec.id === 'loss' || runs.some((run) => spec.columns.some((name) => finite(run.steps[name]))));

// A norm that is mostly small and once very large is read on a logarithmic axis.
for (const spec of specs.filter((s) => s.id === 'gradient_norm')) {
  const all = runs.flatMap((run) => run.steps.gradient_norm.filter((v) => v !== null && v > 0)).sort((a, b) => a - b);
  spec.log_first = all.length > 2 && all[all.length - 1] > 12 * all[all.length >> 1];
}

// The values of every run at x of the axis: of its step that is nearest.
function values_at(x, axis, spec) {
  const rows = [];
  for (const run of runs) {
    const i = run.shown ? nearest(run.steps[axis], x) : -1;
    if (i < 0) continue;
    const list = run.steps[axis], iteration = run.steps.iteration[i];
    if (x > list[list.length - 1] * 1.02 + 1 || x < list[0] - 0.02 * Math.abs(list[list.length - 1]) - 1) continue;
    const values = spec.describe(run, i, iteration);
    const near = (at) => Math.abs(at - iteration) <= Math.max(1, last_iteration() / 300);
    const saved = run.saves.find(near), restarted = run.restarts.find(near);
    if (axis !== 'iteration') values.push(['iteration', grouped(iteration)]);
    else if (runs.length === 1) values.push(['tokens', number(run.steps.tokens[i], (v) => scaled(v, 4, 'B'))], ['time running', number(run.steps.elapsed[i], duration)]);
    if (saved !== undefined && runs.length === 1) values.push(['checkpoint', grouped(saved)]);
    if (restarted !== undefined && runs.length === 1) values.push(['restarted from', grouped(restarted)]);
    rows.push({ run, values });
  }
  return rows;
}

const charts = [];
const host = {
  x: null,
  move(x, chart) {
    this.x = x;
    for (const c of charts) c.point(x, c === chart);
  },
  leave() {
    this.x = null;
    for (const c of charts) c.point(null, false);
  },
  zoom(range) {
    view.range = range;
    document.getElementById('reset').hidden = range === null;
    draw();
  },
  // From the first to the last value of all runs that are shown.
  extent() {
    const ends = runs.filter((run) => run.shown && run.steps.rows > 0).flatMap((run) => {
      const list = run.steps[view.x].filter((v) => v !== null);
      const more = run.validations.flatMap((c) => c[view.x].filter((v) => v !== null));
      return list.length ? [list[0], list[list.length - 1], ...more] : more;
    });
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
  },
  key(event, chart) {
    if (event.key === 'Escape') {
      this.leave();
      return this.zoom(null);
    }
    const run = runs.find((r) => r.shown && r.steps.rows > 0);
    if (!run) return undefined;
    const list = run.steps[view.x], last = list.length - 1;
    const now = this.x === null ? -1 : nearest(list, this.x), far = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const to = { ArrowRight: now + far, ArrowLeft: now - far, Home: 0, End: last }[event.key];
    if (to === undefined) return undefined;
    event.preventDefault();
    this.move(list[Math.min(Math.max(to, 0), last)], chart);
    document.getElementById('said').textContent = values_at(this.x, view.x, chart.spec)
      .map(({ run: r, values }) => `${r.name}, ${axes[view.x].describe(this.x)}: ${values.map((v) => v.join(' ')).join(', ')}`).join('. ');
    return undefined;
  },
};

function draw(width) {
  for (const chart of charts) chart.draw(view, width && (chart.spec.wide ? width : (width - 30) / 2));
}

let waiting_for_frame = false;
function draw_soon() {
  if (waiting_for_frame) return;
  waiting_for_frame = true;
  requestAnimationFrame(() => {
    waiting_for_frame = false;
    draw();
  });
}

// The slider's middle reaches over a hundredth of the run, its end over a tenth.
function set_smoothing(slider) {
  const share = Number(slider.value) / 100;
  view.reach = share === 0 ? 0 : last_iteration() * 0.1 * share ** 3;
  const shown = view.reach === 0 ? 'off' : `over ${grouped(Math.max(1, view.reach))} iteration${view.reach < 1.5 ? '' : 's'}`;
  document.getElementById('smoothing-value').textContent = shown;
  slider.setAttribute('aria-valuetext', shown);
}

function add_legend() {
  if (runs.length === 1) return;
  document.getElementById('controls').classList.add('several');
  for (const run of runs) {
    const button = make('button', 'run', document.getElementById('legend'));
    button.type = 'button';
    button.setAttribute('aria-pressed', 'true');
    make('i', run.swatch, button);
    button.append(run.name);
    button.addEventListener('click', () => {
      run.shown = !run.shown;
      button.setAttribute('aria-pressed', String(run.shown));
      draw();
    });
  }
}

// What the strokes and marks mean: only what there is.
function add_key() {
  const key = document.getElementById('key');
  const entry = (text, draw_it) => {
    const span = make('span', '', key);
    draw_it(shape('svg', { width: 26, height: 12, 'aria-hidden': 'true' }, span));
    span.append(text);
  };
  const color = runs.length === 1 ? runs[0].color : 'var(--soft)', style = `stroke:${color}`;
  entry('smoothed', (s) => shape('path', { class: 'line', d: 'M1,6H25', style }, s));
  entry('as logged', (s) => shape('path', { class: 'line raw', d: 'M1,6L5,3L9,9L13,4L17,8L21,3L25,7', style }, s));
  if (runs.some((run) => run.validations.some((v) => !is_test(v))))
    entry('validation', (s) => {
      shape('path', { class: 'line validation', d: 'M1,6H25', style }, s);
      shape('circle', { class: 'validation-point', cx: 13, cy: 6, r: 3, style }, s);
    });
  if (runs.some((run) => run.validations.some(is_test)))
    entry('test set', (s) => shape('rect', { class: 'test-point', x: 9.5, y: 2.5, width: 7, height: 7, style: `fill:${color}` }, s));
  if (runs.some((run) => run.saves.length && run.saves.length <= 120))
    entry('checkpoint', (s) => shape('path', { d: 'M13,2l3.5,4l-3.5,4l-3.5,-4z', style: `fill:${color}` }, s));
  if (runs.some((run) => run.restarts.length))
    entry('restart', (s) => shape('path', { d: 'M13,10l-4,-7h8z', style: `fill:${color}` }, s));
  make('span', 'only-screen', key, 'Drag across a chart to zoom in.');
  key.hidden = false;
}

function listen() {
  const slider = document.getElementById('smoothing');
  if (last_iteration() < 3 || runs.every((run) => run.steps.rows < 3)) slider.value = 0;
  set_smoothing(slider);
  slider.addEventListener('input', () => {
    set_smoothing(slider);
    draw_soon();
  });
  for (const input of document.querySelectorAll('input[name=x]')) {
    if (runs.every((run) => !finite(run.steps[input.value]))) input.disabled = true;
    input.addEventListener('change', () => {
      view.x = input.value;
      host.leave();
      host.zoom(null);
    });
  }
  document.getElementById('reset').addEventListener('click', () => host.zoom(null));
  document.getElementById('controls').hidden = false;
  new ResizeObserver(draw_soon).observe(document.getElementById('charts'));
  addEventListener('pointerdown', (event) => {
    if (!event.target.closest || !event.target.closest('.chart')) host.leave();
  });
  // Paper: curves as wide as it is, and everything that is folded, but not all samples.
  const folded = [...document.querySelectorAll('details:not(.sample)')];
  let opened = [];
  addEventListener('beforeprint', () => {
    host.leave();
    opened = folded.filter((d) => !d.open);
    for (const d of opened) d.open = true;
    draw(690);
  });
  addEventListener('afterprint', () => {
    for (const d of opened) d.open = false;
    draw();
  });
}

add_legend();
for (const spec of specs) charts.push(new Chart(spec, host, document.getElementById('charts')));
add_key();
listen();
draw();
