// The kinds of panels of the dashboard. All but the state timeline are drawn by @grafana/ui.
import {
  dateTimeFormat, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues,
} from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, useTheme2, VizRepeater } from '@grafana/ui';
import { settingsOf } from './fields';

function TimeSeriesPanel({ panel, frames, range, timeZone, width, height }) {
  const { legend } = panel.options;
  return <TimeSeries {...{ frames, legend, timeZone, width, height }} timeRange={range} options={panel.options} />;
}

/** One value a series, side by side: `draw` gets the value and its size. */
function Values({ panel, frames, timeZone, width, height, draw, ...how }) {
  const theme = useTheme2();
  const values = () =>
    getFieldDisplayValues({
      data: frames,
      fieldConfig: settingsOf(panel),
      reduceOptions: panel.options.reduceOptions,
      replaceVariables: (text) => text,
      theme,
      timeZone,
    });
  return (
    <VizRepeater
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={(one) => draw({ ...one, theme })}
      renderCounter={0}
      source={frames}
      {...{ width, height }}
      {...how}
    />
  );
}

function StatPanel(props) {
  const { colorMode, graphMode, textMode } = props.panel.options;
  const draw = ({ value, count, ...rest }) => (
    <BigValue {...rest} {...{ colorMode, graphMode, textMode, count }} value={value.display} />
  );
  return <Values {...props} orientation="auto" autoGrid draw={draw} />;
}

function BarGaugePanel(props) {
  const { orientation, reduceOptions, ...how } = props.panel.options;
  const draw = ({ value, ...rest }) => (
    <BarGauge
      {...rest}
      {...how}
      field={value.field}
      display={value.view.getFieldDisplayProcessor(value.colIndex)}
      value={value.display}
    />
  );
  return <Values {...props} orientation={orientation} itemSpacing={8} minVizHeight={16} draw={draw} />;
}

/** How long a field has which value, as shares of the time that is shown. */
function stretches({ values, display }) {
  const found = [];
  values.forEach((value, index) => {
    const last = found.at(-1);
    if (last?.value === value) last.end = (index + 1) / values.length;
    else found.push({ value, begin: index / values.length, end: (index + 1) / values.length, ...display(value) });
  });
  return found.filter(({ value }) => value !== null);
}

const percent = (share) => `${100 * share}%`;
const TICKS = [0.1, 0.3, 0.5, 0.7, 0.9];

function StateTimelinePanel({ frames, range, timeZone, height }) {
  const when = (share) => range.from.valueOf() + share * (range.to.valueOf() - range.from.valueOf());
  return (
    <div className="states" style={{ height }}>
      {frames.map((frame) => (
        <div className="state" key={frame.refId}>
          <span>{getFieldDisplayName(frame.fields[1], frame, frames)}</span>
          <div>
            {stretches(frame.fields[1]).map(({ begin, end, color, text }) => (
              <i
                key={begin}
                title={text}
                style={{ left: percent(begin), width: percent(end - begin), background: color }}
              />
            ))}
          </div>
        </div>
      ))}
      <div className="state times">
        <span />
        <div>
          {TICKS.map((share) => (
            <b key={share} style={{ left: percent(share) }}>
              {dateTimeFormat(when(share), { format: 'HH:mm:ss', timeZone })}
            </b>
          ))}
        </div>
      </div>
    </div>
  );
}

export const PANELS = {
  timeseries: TimeSeriesPanel,
  stat: StatPanel,
  bargauge: BarGaugePanel,
  'state-timeline': StateTimelinePanel,
};
