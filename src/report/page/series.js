// The numbers of the page: reading them, smoothing them, writing them.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);

// A column is a list, one number for all rows, or null for none.
function column(value, rows) {
  return Array.isArray(value) ? value : new Array(rows).fill(value);
}

function unpack(table) {
  if (table === null) return null;
  const columns = { rows: table.rows };
  for (const name of Object.keys(table)) if (name !== 'rows' && name !== 'set') columns[name] = column(table[name], table.rows);
  return columns;
}

// Where `value` would stand in an ascending list.
function place(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

// The index of the entry of an ascending list that is nearest to `value`; -1 in an empty one.
function nearest(list, value) {
  const at = place(list, value);
  if (at === 0) return list.length > 0 ? 0 : -1;
  if (at === list.length) return at - 1;
  return value - list[at - 1] <= list[at] - value ? at - 1 : at;
}

// A column at an iteration: between two rows in proportion.
function between(columns, name, iteration) {
  const x = columns.iteration, y = columns[name], at = place(x, iteration);
  if (x.length === 0) return null;
  if (at === x.length) return y[at - 1];
  if (at === 0 || x[at] === iteration || y[at - 1] === null || y[at] === null) return y[at];
  return y[at - 1] + (y[at] - y[at - 1]) * (iteration - x[at - 1]) / (x[at] - x[at - 1]);
}

const runs = data.map((run, index) => {
  const steps = unpack(run.steps);
  const validations = run.validations.map((v) => {
    const curve = Object.assign(unpack(v), { set: v.set });
    curve.tokens = curve.iteration.map((i) => between(steps, 'tokens', i));
    return curve;
  });
  const stroke = ['', 'dashed', 'dotted'][Math.min(index >> 3, 2)];
  return {
    name: run.name, shown: true, color: `var(--run-${index % 8})`, stroke, swatch: `swatch run-${index % 8} ${stroke}`,
    steps, means: unpack(run.means), validations, restarts: run.restarts, saves: run.saves,
  };
});

// Means over the values around, weighted by exp(-distance in iterations / reach), so that the curve
// does not lag behind; null stays null.
function smoothed(iterations, values, reach) {
  if (reach <= 0) return values;
  const sums = new Float64Array(values.length), weights = new Float64Array(values.length);
  const walk = (from, to, step) => {
    let sum = 0, weight = 0, last = null;
    for (let i = from; i !== to; i += step) {
      if (values[i] === null) continue;
      const fade = last === null ? 0 : Math.exp(-Math.abs(iterations[i] - last) / reach);
      sums[i] += sum * fade;
      weights[i] += weight * fade;
      sum = sum * fade + values[i];
      weight = weight * fade + 1;
      last = iterations[i];
    }
  };
  walk(0, values.length, 1);
  walk(values.length - 1, -1, -1);
  return values.map((value, i) => (value === null ? null : (sums[i] + value) / (weights[i] + 1)));
}

function grouped(value) {
  return (Math.round(value) + 0).toLocaleString('en-US');
}

const scales = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

// "1.25M"; billion: of units "G", of tokens "B".
function scaled(value, digits = 3, billion = 'G') {
  const size = Math.abs(value);
  for (const [unit, letter] of scales)
    if (size >= unit) return Number((value / unit).toPrecision(digits)) + (letter === 'G' ? billion : letter);
  return String(Number(value.toPrecision(digits)));
}

// "0.0003", "3.21", "1.2e-7": as short as so many digits can be.
function significant(value, digits) {
  const number = Number(value.toPrecision(digits));
  const size = Math.abs(number);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? number.toExponential().replace('e+', 'e') : String(number);
}

function duration(seconds) {
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, '0');
  if (s < 60) return s < 10 && seconds !== s ? `${seconds.toFixed(1)}s` : `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 172800) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
}

const percent = (share) => `${(share * 100).toFixed(Math.abs(share) < 0.1 ? 2 : 1)} %`;
const flops = (value) => `${scaled(value)}FLOP/s`.replace(/([kMGTP])FLOP/, ' $1FLOP');

// What stands below the charts.
const axes = {
  iteration: { label: 'iteration', tick: (v) => (Math.abs(v) >= 1e5 ? scaled(v, 4) : grouped(v)), describe: (v) => `iteration ${grouped(v)}`, whole: true },
  tokens: { label: 'tokens', tick: (v) => scaled(v, 4, 'B'), describe: (v) => `${scaled(v, 4, 'B')} tokens`, whole: true },
  elapsed: { label: 'time running', tick: duration, describe: duration, time: true },
};

// Round numbers that divide [low, high] in about `count` parts.
function ticks(low, high, count, axis = {}) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(count, 1);
  let step;
  if (axis.time && rough > 1) {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
    step = steps.find((s) => s >= rough) || 86400 * Math.ceil(rough / 86400);
  } else {
    const unit = 10 ** Math.floor(Math.log10(rough));
    step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough * 0.999);
  }
  if (axis.whole) step = Math.max(step, 1);
  const list = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && list.length < 100; ++k) list.push(k * step);
  return list;
}

// Powers of ten, with 2 and 5 between them where there is room; round numbers within a decade.
function log_ticks(low, high, count) {
  const list = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const m of [1, 2, 5]) if (m * 10 ** e >= low * 0.999 && m * 10 ** e <= high * 1.001) list.push(Number((m * 10 ** e).toPrecision(1)));
  const powers = list.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
  if (powers.length > count) return powers.filter((v, i) => i % Math.ceil(powers.length / count) === 0);
  if (list.length > 2 * count) return powers;
  return list.length >= 3 ? list : ticks(low, high, count).filter((v) => v > 0);
}
