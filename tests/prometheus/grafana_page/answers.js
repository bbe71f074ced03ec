// Prometheus' answers as Grafana's data frames: one frame a series, named by the query's legend.
import { createDataFrame, FieldType } from '@grafana/data';

const filledIn = (text, variables) =>
  Object.entries(variables).reduce((filled, [name, value]) => filled.replaceAll(`$${name}`, value), text);

const nameOf = (legend, labels) => legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');

const range = (from, to, step) => Array.from({ length: (to - from) / step + 1 }, (_, index) => from + index * step);

/** A series at each of the times; null where it has no number. */
function frameOf(target, { metric, value, values = [value] }, times) {
  const numbers = times.map(() => null);
  for (const [at, text] of values) {
    const index = times.findIndex((time) => Math.abs(time - at) < 0.01);
    numbers[index] = Number.isFinite(Number(text)) ? Number(text) : null;
  }
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        values: numbers,
        config: { displayNameFromDS: nameOf(target.legendFormat, metric) },
      },
    ],
  });
}

async function framesOf(target, { prometheus, variables, from, to, step }) {
  const query = filledIn(target.expr, variables);
  const [path, fields] = target.instant
    ? ['query', { query, time: to }]
    : ['query_range', { query, start: from, end: to, step }];
  const times = target.instant ? [to] : range(from, to, step);
  const answer = await (await fetch(`${prometheus}/api/v1/${path}?${new URLSearchParams(fields)}`)).json();
  if (answer.status !== 'success') throw new Error(`${query}: ${answer.error}`);
  return answer.data.result.map((series) => frameOf(target, series, times));
}

export const answersOf = async (panel, asked) =>
  (await Promise.all(panel.targets.map((target) => framesOf(target, asked)))).flat();
