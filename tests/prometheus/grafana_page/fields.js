// What a panel's JSON says of its fields, over what Grafana takes where the JSON says nothing.
import { applyFieldOverrides, FieldType, identityOverrideProcessor, Registry } from '@grafana/data';

const THRESHOLDS = { mode: 'absolute', steps: [{ value: null, color: 'green' }, { value: 80, color: 'red' }] };
const COLOR = { timeseries: { mode: 'palette-classic' } };
const CUSTOM = {
  axisPlacement: 'auto', axisSoftMax: undefined, barAlignment: 0, barWidthFactor: 0.6, drawStyle: 'line',
  fillOpacity: 0, gradientMode: 'none', lineInterpolation: 'linear', lineWidth: 1, pointSize: 5, showPoints: 'auto',
  spanNulls: false, stacking: { mode: 'none', group: 'A' },
};
const COMMON = ['color', 'decimals', 'displayName', 'mappings', 'max', 'min', 'noValue', 'thresholds', 'unit'];

const setting = (id, path, isCustom) => ({
  id, path, isCustom, name: id, process: identityOverrideProcessor, shouldApply: ({ type }) => type !== FieldType.time,
});
const registry = new Registry(() => [
  ...COMMON.map((name) => setting(name, name, false)),
  ...Object.keys(CUSTOM).map((name) => setting(`custom.${name}`, name, true)),
]);

/** The fields' settings of a panel. */
export function settingsOf({ type, fieldConfig: { defaults, overrides } }) {
  const { steps, mode } = defaults.thresholds ?? THRESHOLDS;
  return {
    defaults: {
      color: COLOR[type] ?? { mode: 'thresholds' },
      mappings: [],
      ...defaults,
      custom: { ...CUSTOM, ...defaults.custom },
      thresholds: { mode, steps: steps.map(({ value, color }) => ({ value: value ?? -Infinity, color })) },
    },
    overrides,
  };
}

/** The frames with units, colours, texts and names as the panel asks for them. */
export const configured = (panel, frames, theme, timeZone) =>
  applyFieldOverrides({
    data: frames,
    fieldConfig: settingsOf(panel),
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone,
  });
