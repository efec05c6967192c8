/* Draws figures that daamctl/reporting/figure_interactive.py describes. A picture is in the page; if plotly.js is there
   too, an interactive figure takes the picture's place on the screen. */
(function () {
  "use strict";
  if (!window.Plotly) return;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const COLOURS = {  // on a light and on a dark page
    blue: ["#0072B2", "#5AA9E6"], orange: ["#D55E00", "#FF9E58"], green: ["#009E73", "#3ECF9F"],
    pink: ["#CC79A7", "#E6A3C7"], sky: ["#56B4E9", "#9BD4F5"], gold: ["#E69F00", "#F2C24E"], grey: ["#7d8794", "#7d8794"]
  };
  const DIVERGING = [[0, "#5e3c99"], [0.25, "#b2abd2"], [0.5, "#f7f7f7"], [0.75, "#fdb863"], [1, "#e66101"]];
  // Plotly's own buttons include one that sends the figure to a server.
  const CONFIG = {displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]};
  const NARROW = 640;  // pixels; panels are stacked on narrower pages
  const INCH = 100;
  const MOST_BUTTONS = 3;  // more options become a list

  function style(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function colour(name) { return name === "text" ? style("--text") : COLOURS[name][dark.matches ? 1 : 0]; }
  function plain(text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/\n/g, "<br>"); }

  /* A value as shown when the reader points at it: the name of the position, or the number with its unit. */
  function shown(axis, value) {
    if (axis.names.length) return plain(axis.names[Math.round(value)] || "");
    const number = axis.whole ? String(value) : value.toFixed(axis.digits);
    return (axis.signed && value > 0 ? "+" : "") + number + (axis.unit ? " " + axis.unit : "");
  }

  function lineTraces(line, panel, place) {
    const tone = colour(line.colour), traces = [];
    if (line.band) {
      const edge = Object.assign({type: "scatter", mode: "lines", x: line.x, line: {width: 0}, hoverinfo: "skip",
        showlegend: false, legendgroup: line.name || line.band_name}, place);
      traces.push(Object.assign({}, edge, {y: line.band[0]}));
      traces.push(Object.assign({}, edge, {y: line.band[1], fill: "tonexty", fillcolor: tone + "26",
        name: plain(line.band_name), showlegend: line.band_name !== ""}));
    }
    const mode = [line.dash ? "lines" : "", line.marker ? "markers" : "", line.texts.length ? "text" : ""];
    const hover = line.x.map(function (x, index) {
      const y = line.y[index], note = line.notes.length ? "<br>" + plain(line.notes[index]) : "";
      if (x === null || y === null) return "";
      if (panel.y.names.length) return shown(panel.y, y) + "<br>" + plain(line.name) + ": " + shown(panel.x, x) + note;
      return plain(line.name) + "<br>" + panel.x.label + " " + shown(panel.x, x) + ": " + shown(panel.y, y) + note;
    });
    traces.push(Object.assign({type: "scatter", mode: mode.filter(Boolean).join("+"), x: line.x, y: line.y,
      name: plain(line.name), showlegend: line.name !== "" && line.legend !== "", legendgroup: line.name,
      line: {color: tone, width: line.width, dash: line.dash || "solid"},
      marker: {color: tone, size: 1.5 * line.size, symbol: (line.marker || "circle") + (line.filled ? "" : "-open"),
        line: {width: line.dash ? 1.2 : line.width, color: tone}},
      text: line.texts.map(plain), textposition: "middle right",
      hovertext: hover, hoverinfo: line.name ? "text" : "skip"}, place));
    return traces;
  }

  function decode(text, rows) {
    const bytes = atob(text), width = bytes.length / rows;
    return Array.from({length: rows}, function (_, row) {
      return Array.from({length: width}, function (_, column) { return bytes.charCodeAt(row * width + column) / 255; });
    });
  }

  function mapTrace(mark, panel, place, bar, maps) {
    let z = decode(maps[mark.values], mark.rows), most = 1;
    if (mark.minus !== null) {
      const minus = decode(maps[mark.minus], mark.rows);
      z = z.map(function (row, i) { return row.map(function (value, j) { return value - minus[i][j]; }); });
      most = Math.max.apply(null, z.map(function (row) { return Math.max.apply(null, row.map(Math.abs)); })) || 1;
    }
    const column = panel.x.label + (mark.step > 1 ? " from %{x}, " + mark.step + " averaged" : " %{x}");
    return Object.assign({type: "heatmap", z: z, x0: 1, dx: mark.step, zmin: mark.minus === null ? 0 : -most, zmax: most,
      colorscale: mark.minus === null ? "Cividis" : DIVERGING, colorbar: bar(mark.label),
      text: z.map(function (row, i) { return row.map(function () { return shown(panel.y, i); }); }),
      hovertemplate: panel.y.label + " %{text}<br>" + column + "<br>" + mark.label + " %{z:.2f}<extra></extra>"}, place);
  }

  function confusionTrace(mark, panel, place, bar) {
    const shares = mark.counts.map(function (row) {
      const total = row.reduce(function (a, b) { return a + b; }, 0);
      return row.map(function (value) { return total ? 100 * value / total : 0; });
    });
    function scale(value) { return mark.many ? Math.sqrt(value) : value; }
    function text(digits, before, after) {
      return shares.map(function (row, i) {
        return row.map(function (share, j) { return share.toFixed(digits) + " %" + before + mark.counts[i][j] + after; });
      });
    }
    const ticks = mark.many ? [0, 1, 5, 10, 25, 50, 100] : [0, 20, 40, 60, 80, 100];
    const hover = text(1, " (", ")").map(function (row, i) {
      return row.map(function (words, j) {
        return panel.y.label + ": " + shown(panel.y, i) + "<br>" + panel.x.label + ": " + shown(panel.x, j) + "<br>" + words;
      });
    });
    return Object.assign({type: "heatmap", z: shares.map(function (row) { return row.map(scale); }), zmin: 0,
      zmax: scale(100), colorscale: "Cividis", colorbar: Object.assign(bar(mark.label), {tickvals: ticks.map(scale), ticktext: ticks}),
      text: text(0, "<br>", ""), texttemplate: mark.counts.length <= 12 ? "%{text}" : "",
      hovertext: hover, hoverinfo: "text"}, place);
  }

  function axisLayout(axis, more) {
    const found = {title: {text: plain(axis.title), standoff: 8}, gridcolor: style("--line"), zeroline: false,
      linecolor: style("--soft"), automargin: true};
    let limits = axis.limits;
    if (axis.names.length) {
      limits = limits || [-0.5, axis.names.length - 0.5];
      Object.assign(found, {tickvals: axis.names.map(function (_, index) { return index; }), ticktext: axis.names.map(plain)});
    }
    if (limits) found.range = axis.reverse ? limits.slice().reverse() : limits;
    return Object.assign(found, more);
  }

  /* Few whole numbers each get a tick; plotly would put ticks between them. */
  function wholeStep(panel) {
    const values = panel.marks.flatMap(function (mark) { return mark.kind === "line" ? mark.x : []; });
    const span = Math.max.apply(null, values) - Math.min.apply(null, values);
    return values.length && span < 12 ? {tick0: 0, dtick: 1} : {};
  }

  /* Data and layout for plotly. Panels are side by side, or stacked on a narrow page. */
  function plot(panels, maps, narrow) {
    const data = [], layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", shapes: [],
      font: {color: style("--text"), size: 12, family: "system-ui, -apple-system, Segoe UI, Roboto, Arial, sans-serif"},
      annotations: [], modebar: {bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--accent")},
      hoverlabel: {bgcolor: style("--card"), font: {color: style("--text")}, align: "left"},
      legend: {orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom"},
      margin: {l: 50, r: 15, t: 30, b: 60}
    };
    const part = narrow ? 1 : 0, gap = narrow ? 0.16 : 0.15;
    const sizes = panels.map(function (panel) { return panel.size[part]; });
    const total = sizes.reduce(function (a, b) { return a + b; }, 0), room = 1 - gap * (panels.length - 1);
    let start = 0;
    panels.forEach(function (panel, index) {
      const end = start + room * sizes[index] / total, domain = [start, Math.min(end, 1)], suffix = index ? index + 1 : "";
      const down = [1 - domain[1], 1 - domain[0]], place = {xaxis: "x" + suffix, yaxis: "y" + suffix};
      layout["xaxis" + suffix] = axisLayout(panel.x, {domain: narrow ? [0, 1] : domain, anchor: place.yaxis});
      if (panel.x.whole) Object.assign(layout["xaxis" + suffix], wholeStep(panel));
      layout["yaxis" + suffix] = axisLayout(panel.y, {domain: narrow ? down : [0, 1], anchor: place.xaxis});
      function bar(label) {
        return narrow ? {orientation: "h", y: down[1], yanchor: "bottom", thickness: 12, title: {text: label, side: "top"}}
          : {x: domain[1] + 0.005, thickness: 12, title: {text: label, side: "right"}};
      }
      panel.marks.forEach(function (mark) {
        if (mark.kind === "line") data.push.apply(data, lineTraces(mark, panel, place));
        else if (mark.kind === "map") data.push(mapTrace(mark, panel, place, bar, maps));
        else if (mark.kind === "confusion") data.push(confusionTrace(mark, panel, place, bar));
        else layout.shapes.push(ruleShape(mark, place));
      });
      /* A single panel, and the upper one of a stack, has the title of the figure. */
      if (panels.length > 1 && (index || !narrow)) {
        layout.annotations.push({text: plain(panel.title), font: {size: 14}, showarrow: false, xref: "paper", yref: "paper",
          x: narrow ? 0.5 : (domain[0] + domain[1]) / 2, y: narrow ? down[1] : 1, yanchor: "bottom", yshift: 4});
      }
      start = end + gap;
    });
    const heights = panels.map(function (panel) { return INCH * panel.size[1]; });
    const names = data.concat(layout.shapes).filter(function (one) { return one.showlegend; }).length;
    const lines = panels[0].title ? panels[0].title.split("\n").length : 0;
    layout.margin.t = 25 + 18 * lines;
    layout.height = 105 + 18 * lines + 20 * Math.ceil(names / 3) + (narrow ? heights.reduce(function (a, b) { return a + b + 80; }) : Math.max.apply(null, heights));
    if (!layout.annotations.length || narrow) layout.title = {text: plain(panels[0].title), font: {size: 14}};
    return {data: data, layout: layout};
  }

  function ruleShape(rule, place) {
    const along = rule.vertical ? "x" : "y", across = rule.vertical ? "y" : "x", shape = {
      type: "line", line: {color: colour(rule.colour), dash: rule.dash, width: 1.5}, name: plain(rule.name), showlegend: rule.name !== ""
    };
    shape[along + "ref"] = place[along + "axis"];
    shape[across + "ref"] = place[across + "axis"] + " domain";
    shape[along + "0"] = shape[along + "1"] = rule.at;
    shape[across + "0"] = 0;
    shape[across + "1"] = 1;
    return shape;
  }

  /* A control for one choice: buttons for few options, a list for many, nothing for one. */
  function control(box, label, name, options, chosen, changed) {
    box.textContent = "";
    box.hidden = options.length < 2;
    if (options.length > MOST_BUTTONS) {
      const words = document.createElement("label"), select = document.createElement("select");
      options.forEach(function (text) { select.add(new Option(text, text, false, text === chosen)); });
      select.addEventListener("change", function () { changed(select.value); });
      words.append(label + " ", select);
      box.append(words);
      return;
    }
    const group = document.createElement("fieldset"), legend = document.createElement("legend");
    legend.textContent = label;
    group.append(legend);
    options.forEach(function (text) {
      const item = document.createElement("label"), input = document.createElement("input");
      Object.assign(input, {type: "radio", name: name, value: text, checked: text === chosen});
      input.addEventListener("change", function () { changed(text); });
      item.append(input, " " + text);
      group.append(item);
    });
    box.append(group);
  }

  document.querySelectorAll("figure[data-figure]").forEach(function (figure) {
    const source = figure.querySelector("script");
    if (!source) return;
    const controls = document.createElement("div"), live = document.createElement("div");
    controls.className = "controls";
    live.className = "live";
    live.setAttribute("role", "img");
    live.setAttribute("aria-label", figure.dataset.label);
    try {
      const spec = JSON.parse(source.textContent);
      const boxes = spec.choices.map(function () { return controls.appendChild(document.createElement("div")); });
      let chosen = spec.views[0].chosen.slice();
      /* Options of a choice: those of the views that agree with the choices before it. */
      function options(level) {
        const views = spec.views.filter(function (view) {
          return chosen.slice(0, level).every(function (text, index) { return view.chosen[index] === text; });
        });
        return Array.from(new Set(views.map(function (view) { return view.chosen[level]; })));
      }
      function draw() {
        const view = spec.views.find(function (one) { return one.chosen.join("\n") === chosen.join("\n"); });
        const made = plot(view.panels, spec.maps, figure.clientWidth < NARROW);
        return Plotly.react(live, made.data, made.layout, CONFIG);
      }
      function fill(from) {
        boxes.slice(from).forEach(function (box, index) {
          const level = from + index, found = options(level);
          if (!found.includes(chosen[level])) chosen[level] = found[0];
          control(box, spec.choices[level], figure.id + "-" + level, found, chosen[level], function (text) {
            chosen[level] = text;
            fill(level + 1);
            draw();
          });
        });
      }
      fill(0);
      figure.append(controls, live);
      figure.classList.add("ready");
      Promise.resolve(draw()).catch(function (error) { figure.classList.remove("ready"); console.error(error); });
      dark.addEventListener("change", draw);
      let width = figure.clientWidth;
      new ResizeObserver(function () {
        const now = figure.clientWidth;
        if (now === width || now === 0) return;
        if ((width < NARROW) === (now < NARROW)) Plotly.Plots.resize(live); else draw();
        width = now;
      }).observe(figure);
    } catch (error) {
      figure.classList.remove("ready");
      console.error(error);
    }
  });
})();
