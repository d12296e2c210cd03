// One chart: axes, lines, marks, and a cursor that shows the values below it.

// Elements of SVG are made in the name space of one that the page holds.
const svg_space = document.getElementById('shape').namespaceURI;

function shape(name, attributes, parent, text) {
  const element = document.createElementNS(svg_space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function make(name, classes, parent, text) {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function tell_one(label, value, body) {
  const row = make('tr', '', body);
  make('td', 'label', row, label);
  make('td', '', row, value);
}

// A row a run, a column a label.
function tell_several(rows, body) {
  const most = 12, labels = [...new Set(rows.flatMap(({ values }) => values.map(([label]) => label)))];
  const head = make('tr', '', body);
  for (const label of ['', ...labels]) make('td', 'label', head, label);
  for (const { run, values } of rows.slice(0, most)) {
    const row = make('tr', '', body), by_label = new Map(values), cell = make('td', 'run-name', row);
    make('i', run.swatch, cell);
    cell.append(run.name);
    for (const label of labels) make('td', '', row, by_label.get(label) || '–');
  }
  if (rows.length > most) make('td', 'label', make('tr', '', body), `and ${rows.length - most} more`);
}

// spec: {id, title, note, wide, log (may be switched), log_first, zero (the axis begins at 0), tick: number -> text,
//        series: (run, view) -> [{x, y, kind: raw | line | validation | test, points}], describe: (run, row, iteration) -> [[label, value]]}
// view: {x: name of the axis, range: [low, high] or null, reach: of smoothing, in iterations}
// host: {move(x, chart), leave(), zoom(range)}: what all charts do together.
class Chart {
  constructor(spec, host, parent) {
    this.spec = spec;
    this.host = host;
    this.log = Boolean(spec.log_first);
    this.figure = make('figure', spec.wide ? 'chart wide' : 'chart', parent);
    const caption = make('figcaption', '', this.figure);
    caption.append(spec.title);
    if (spec.note) make('small', '', caption, spec.note);
    if (spec.log) this.add_log_switch(caption);
    this.svg = shape('svg', { role: 'img', tabindex: '0', focusable: 'true' }, this.figure);
    this.tip = make('div', 'tip', this.figure);
    this.tip.hidden = true;
    this.listen();
  }

  add_log_switch(caption) {
    const button = make('button', '', caption, 'log');
    button.type = 'button';
    button.setAttribute('aria-label', `${this.spec.title}: logarithmic axis`);
    button.setAttribute('aria-pressed', String(this.log));
    button.addEventListener('click', () => {
      this.log = !this.log;
      button.setAttribute('aria-pressed', String(this.log));
      this.draw(this.view);
    });
  }

  // width: of the paper, when it is not that of the window
  draw(view, width) {
    this.view = view;
    const axis = axes[view.x];
    this.width = width || this.figure.clientWidth || 600;
    this.height = this.spec.wide ? Math.max(245, Math.min(380, this.width * 0.36)) : Math.max(180, Math.min(230, this.width * 0.45));
    this.lines = runs.filter((run) => run.shown).flatMap((run) => this.spec.series(run, view).map((s) => ({ run, ...s })));
    this.box = { left: 52, right: this.width - 20, top: 14, bottom: this.height - 40 };
    this.find_ranges();
    this.svg.replaceChildren();
    this.svg.setAttribute('viewBox', `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute('aria-label', this.summary());
    this.draw_axes(axis);
    const [x, y] = [this.box.left - 4, this.box.top - 6], [width_in, height_in] = [this.box.right - x + 4, this.box.bottom - y + 6];
    const body = shape('svg', { x, y, width: width_in, height: height_in, viewBox: `${x} ${y} ${width_in} ${height_in}` }, this.svg);
    this.draw_marks(body);
    for (const line of this.lines) this.draw_line(line, body);
    this.above = shape('g', {}, this.svg);
    if (this.lines.every((line) => line.x.length === 0))
      shape('text', { x: (this.box.left + this.box.right) / 2, y: (this.box.top + this.box.bottom) / 2, 'text-anchor': 'middle' }, this.svg, 'nothing to draw');
  }

  find_ranges() {
    const inside = (x) => this.view.range === null || (x >= this.view.range[0] && x <= this.view.range[1]);
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of this.lines)
      for (let i = 0; i < x.length; ++i) {
        if (y[i] === null || x[i] === null || !inside(x[i]) || (this.log && y[i] <= 0)) continue;
        x0 = Math.min(x0, x[i]);
        x1 = Math.max(x1, x[i]);
        y0 = Math.min(y0, y[i]);
        y1 = Math.max(y1, y[i]);
      }
    if (this.view.range) [x0, x1] = this.view.range; else if (this.host.extent()) [x0, x1] = this.host.extent();
    if (!(x1 >= x0)) [x0, x1] = [0, 1];
    this.lone = x1 === x0;
    if (this.lone) [x0, x1] = [x0 - 1, x1 + 1];
    if (!(y1 >= y0)) [y0, y1] = this.log ? [0.1, 1] : [0, 1];
    if (this.log) {
      const pad = Math.max((y1 / y0) ** 0.05, 1.02);
      [y0, y1] = [y0 / pad, y1 * pad];
    } else {
      if (this.spec.zero) y0 = Math.min(y0, 0);
      if (y1 === y0) [y0, y1] = [y0 - (Math.abs(y0) * 0.1 || (this.spec.zero ? 0 : 1)), y1 + (Math.abs(y1) * 0.1 || 1)];
      const pad = (y1 - y0) * 0.05;
      [y0, y1] = [this.spec.zero && y0 === 0 ? 0 : y0 - pad, y1 + pad];
    }
    this.range = { x: [x0, x1], y: [y0, y1] };
  }

  px(x) {
    const [low, high] = this.range.x;
    return this.box.left + (x - low) / (high - low) * (this.box.right - this.box.left);
  }

  py(y) {
    const f = this.log ? Math.log : (v) => v;
    const [low, high] = this.range.y.map(f);
    return this.box.bottom - (f(y) - low) / (high - low) * (this.box.bottom - this.box.top);
  }

  x_at(pixel) {
    const [low, high] = this.range.x;
    return low + (pixel - this.box.left) / (this.box.right - this.box.left) * (high - low);
  }

  draw_axes(axis) {
    const { left, right, top, bottom } = this.box;
    const count = this.spec.wide ? 7 : 4;
    const list = this.log ? log_ticks(...this.range.y, count) : ticks(...this.range.y, count);
    for (const y of list) {
      const at = this.py(y).toFixed(1);
      shape('line', { class: 'grid', x1: left, x2: right, y1: at, y2: at }, this.svg);
      shape('text', { x: left - 8, y: at, dy: '0.35em', 'text-anchor': 'end' }, this.svg, this.spec.tick(y));
    }
    shape('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }, this.svg);
    const count_x = Math.max(2, Math.floor((right - left) / 95));
    for (const x of this.lone ? [this.range.x[0] + 1] : ticks(...this.range.x, count_x, axis)) {
      const at = this.px(x).toFixed(1);
      shape('line', { class: 'axis', x1: at, x2: at, y1: bottom, y2: bottom + 4 }, this.svg);
      shape('text', { x: at, y: bottom + 18, 'text-anchor': 'middle' }, this.svg, axis.tick(x));
    }
    shape('text', { x: right, y: bottom + 35, 'text-anchor': 'end' }, this.svg, axis.label);
  }

  // Restarts in every chart, checkpoints at the foot of the wide one.
  draw_marks(parent) {
    const { top, bottom } = this.box;
    for (const run of runs.filter((r) => r.shown)) {
      const at = (iteration) => this.px(this.view.x === 'iteration' ? iteration : between(run.steps, this.view.x, iteration)).toFixed(1);
      if (run.steps.rows === 0) continue;
      for (const iteration of run.restarts) {
        const x = at(iteration);
        shape('line', { class: 'mark-restart', x1: x, x2: x, y1: top, y2: bottom }, parent);
        shape('path', { class: 'mark', d: `M${x},${top + 1}l-4,-7h8z`, style: `fill:${run.color}` }, parent);
      }
      if (!this.spec.wide || run.saves.length > 120) continue;
      for (const iteration of run.saves)
        shape('path', { class: 'mark', d: `M${at(iteration)},${bottom - 4}l3.5,4l-3.5,4l-3.5,-4z`, style: `fill:${run.color}` }, parent);
    }
  }

  draw_line({ run, x, y, kind }, parent) {
    if (kind === 'test') {
      this.draw_test(run, x, y, parent);
      return;
    }
    let path = '', pen = false, alone = [], points = [];
    const add = (i) => points.push([this.px(x[i]).toFixed(1), this.py(y[i]).toFixed(1)]);
    for (let i = 0; i < x.length; ++i) {
      if (y[i] === null || x[i] === null || (this.log && y[i] <= 0)) {
        pen = false;
        continue;
      }
      if (kind === 'validation' || !pen) add(i);
      const [px, py] = kind === 'validation' || !pen ? points[points.length - 1] : [this.px(x[i]).toFixed(1), this.py(y[i]).toFixed(1)];
      path += `${pen ? 'L' : 'M'}${px},${py}`;
      const ends = i + 1 === x.length || y[i + 1] === null;
      if (!pen && ends) alone.push([px, py]);
      pen = true;
    }
    const style = `stroke:${run.color}`;
    if (path) shape('path', { class: `line ${kind} ${kind === 'line' ? run.stroke : ''}`, d: path, style }, parent);
    if (kind === 'validation' && points.length <= 80)
      for (const [cx, cy] of points) shape('circle', { class: 'validation-point', cx, cy, r: 3, style }, parent);
    else if (kind !== 'raw')
      for (const [cx, cy] of alone) shape('circle', { class: 'point', cx, cy, r: 3.5, style: `fill:${run.color}` }, parent);
  }

  draw_test(run, x, y, parent) {
    for (let i = 0; i < x.length; ++i) {
      if (y[i] === null || x[i] === null || (this.log && y[i] <= 0)) continue;
      shape('rect', { class: 'test-point', x: this.px(x[i]) - 3.5, y: this.py(y[i]) - 3.5, width: 7, height: 7, style: `fill:${run.color}` }, parent);
    }
  }

  // What the chart shows, in words.
  summary() {
    const parts = runs.filter((run) => run.shown).map((run) => {
      const line = this.lines.find((l) => l.run === run && l.kind === 'line');
      const numbers = line ? line.y.filter((v) => v !== null) : [];
      if (numbers.length === 0) return `${run.name}: none`;
      const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
      return `${run.name}: from ${this.spec.tick(numbers[0])} to ${this.spec.tick(numbers[numbers.length - 1])}, lowest ${this.spec.tick(low)}, highest ${this.spec.tick(high)}`;
    });
    return `${this.spec.title} over ${axes[this.view.x].label}. ${parts.join('. ')}. Arrow keys move along the curve.`;
  }

  listen() {
    const pixel = (event) => {
      const area = this.svg.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - area.left) / area.width * this.width, this.box.left), this.box.right);
    };
    this.svg.addEventListener('pointerdown', (event) => {
      if (event.pointerType === 'mouse' && event.button === 0) this.drag = pixel(event);
      this.host.move(this.x_at(pixel(event)), this);
    });
    this.svg.addEventListener('pointermove', (event) => {
      if (this.drag !== undefined && event.buttons === 0) this.drag = undefined;
      this.host.move(this.x_at(pixel(event)), this);
    });
    this.svg.addEventListener('pointerup', (event) => {
      const from = this.drag, to = pixel(event);
      this.drag = undefined;
      if (from !== undefined && Math.abs(to - from) > 8) this.host.zoom([this.x_at(Math.min(from, to)), this.x_at(Math.max(from, to))]);
    });
    this.svg.addEventListener('pointerleave', (event) => {
      this.drag = undefined;
      if (event.pointerType === 'mouse') this.host.leave();
    });
    this.svg.addEventListener('dblclick', () => this.host.zoom(null));
    this.svg.addEventListener('blur', () => this.host.leave());
    this.svg.addEventListener('keydown', (event) => this.host.key(event, this));
  }

  // The cursor at x; the values next to it in the chart that was asked.
  point(x, asked) {
    if (!this.above) return;
    this.above.replaceChildren();
    this.tip.hidden = true;
    if (x === null || x < this.range.x[0] || x > this.range.x[1]) return;
    const at = this.px(x), { top, bottom } = this.box;
    if (asked && this.drag !== undefined) {
      const [from, to] = [Math.min(this.drag, at), Math.max(this.drag, at)];
      shape('rect', { class: 'range', x: from, y: top, width: to - from, height: bottom - top }, this.above);
    }
    shape('line', { class: 'cursor', x1: at, x2: at, y1: top, y2: bottom }, this.above);
    for (const line of this.lines) {
      if (line.kind !== 'line') continue;
      const i = nearest(line.x, x);
      if (i < 0 || line.y[i] === null || line.y[i] < this.range.y[0] || line.y[i] > this.range.y[1]) continue;
      if (Math.abs(this.px(line.x[i]) - at) > 40) continue;
      shape('circle', { class: 'point', cx: this.px(line.x[i]), cy: this.py(line.y[i]), r: 4, style: `fill:${line.run.color}` }, this.above);
    }
    if (asked) this.tell(x, at);
  }

  tell(x, at) {
    const rows = values_at(x, this.view.x, this.spec);
    this.tip.replaceChildren();
    make('b', '', this.tip, axes[this.view.x].describe(x));
    const body = make('tbody', '', make('table', '', this.tip));
    if (runs.length > 1) tell_several(rows, body);
    else for (const { values } of rows) for (const [label, value] of values) tell_one(label, value, body);
    this.tip.hidden = false;
    const scale = this.svg.getBoundingClientRect().width / this.width;
    const right = at * scale + 14, left = at * scale - 14 - this.tip.offsetWidth;
    const free = this.figure.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, right <= free ? right : left >= 0 ? left : Math.min(right, free))}px`;
    // On a phone below the chart, where no finger is.
    const area = this.svg.getBoundingClientRect(), above = area.top - this.figure.getBoundingClientRect().top;
    this.tip.style.top = `${above + (this.figure.clientWidth < 560 ? this.box.bottom + 6 : this.box.top + 4) * scale}px`;
  }
}
