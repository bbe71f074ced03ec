// Draws a dashboard's JSON with Grafana's components: window.draw({dashboard, prometheus, variables, from, to, step}).
import './page.css';
import { createTheme, dateTime, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import { answersOf } from './answers';
import { configured } from './fields';
import { PANELS } from './panels';

const [COLUMNS, CELL, MARGIN, BORDER] = [24, 30, 8, 16]; // Grafana's grid, in pixels
const TIME_ZONE = 'utc';
const theme = createTheme({ colors: { mode: 'dark' } });

/** Where a panel lies, in pixels. */
function placeOf({ x, y, w, h }) {
  const column = (innerWidth - 2 * BORDER + MARGIN) / COLUMNS;
  const row = CELL + MARGIN;
  return { left: BORDER + x * column, top: BORDER + y * row, width: w * column - MARGIN, height: h * row - MARGIN };
}

function Panel({ panel, frames = [], error, range }) {
  const { width, height, ...corner } = placeOf(panel.gridPos);
  const Kind = PANELS[panel.type];
  const filled = frames.some(({ fields }) => fields[1].values.some((value) => value !== null));
  const inside = (innerWidth, innerHeight) =>
    filled ? (
      <Kind {...{ panel, frames, range }} width={innerWidth} height={innerHeight} timeZone={TIME_ZONE} />
    ) : (
      <div className="empty">No data</div>
    );
  return (
    <section className="panel" data-panel={panel.id} data-error={error} data-filled={filled} style={corner}>
      {panel.type === 'row' ? (
        <h2 className="heading">{panel.title}</h2>
      ) : (
        <PanelChrome {...{ width, height }} title={panel.title} description={panel.description} statusMessage={error}>
          {inside}
        </PanelChrome>
      )}
    </section>
  );
}

async function answered(panel, asked) {
  if (panel.type === 'row') return { panel };
  try {
    return { panel, frames: configured(panel, await answersOf(panel, asked), theme, TIME_ZONE) };
  } catch (error) {
    return { panel, error: String(error) };
  }
}

/** Put the styles into the page, and wait for the fonts that they name: a canvas takes no later ones. */
async function styled(render) {
  flushSync(() => render(<GlobalStyles />));
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
}

window.draw = async (asked) => {
  const [from, to] = [dateTime(asked.from * 1000), dateTime(asked.to * 1000)];
  const range = { from, to, raw: { from, to } };
  const panels = await Promise.all(asked.dashboard.panels.map((panel) => answered(panel, asked)));
  const bottom = Math.max(...asked.dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  document.body.style.height = `${bottom * (CELL + MARGIN)}px`;
  const root = createRoot(document.body.appendChild(document.createElement('main')));
  const render = (content) => root.render(<ThemeContext.Provider value={theme}>{content}</ThemeContext.Provider>);
  await styled(render);
  render([<GlobalStyles key="styles" />, ...panels.map((one) => <Panel key={one.panel.id} range={range} {...one} />)]);
};
