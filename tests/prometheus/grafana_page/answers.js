// Prometheus' answers as Grafana's data frames: one frame a series, named by the query's legend.
import { createDataFrame, FieldType } from '@grafana/data';

export const filledIn = (text, variables) =>
  Object.entries(variables).reduce((filled, [name, value]) => filled.replaceAll(`$${name}`, value), text);

const nameOf = (legend, labels) => legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');

function frameOf(target, { metric, value, values = [value] }, interval) {
  const numbers = values.map(([, text]) => Number(text));
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: values.map(([at]) => at * 1000), config: { interval } },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        values: numbers.map((number) => (Number.isFinite(number) ? number : null)),
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
  const answer = await (await fetch(`${prometheus}/api/v1/${path}?${new URLSearchParams(fields)}`)).json();
  if (answer.status !== 'success') throw new Error(`${query}: ${answer.error}`);
  return answer.data.result.map((series) => frameOf(target, series, step * 1000));
}

export const answersOf = async (panel, asked) =>
  (await Promise.all(panel.targets.map((target) => framesOf(target, asked)))).flat();
