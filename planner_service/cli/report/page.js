'use strict';
(() => {
  const data = JSON.parse(document.getElementById('report-data').textContent);
  const L = data.layers, M = data.micro_batches, E = data.experts;
  const P = data.nodes * data.gpus_per_node;
  const at = (id) => document.getElementById(id);

  // Okabe and Ito's colours, which colour-blind people tell apart. One meaning each.
  const POLICY = {
    none: {name: 'None', color: '#8a939d'},
    eplb: {name: 'EPLB', color: '#e69f00'},
    relibra: {name: 'ReLibra', color: '#0072b2'},
    ideal: {name: 'Ideal', color: '#1d2733'},
  };
  const SKY = '#56b4e9', GREEN = '#009e73', PINK = '#cc79a7', PALE_PINK = '#ebcbdc', RED = '#d55e00';
  const INK = '#1d2733', SOFT = '#5b6775', LINE = '#e6eaee';

  const policies = {};
  for (const policy of data.policies) policies[policy.policy] = policy;
  const none = policies.none, ours = policies.relibra;

  // ---- numbers ----
  const range = (n) => Array.from({length: n}, (_, i) => i);
  const mean = (list) => list.length ? list.reduce((a, b) => a + b, 0) / list.length : 0;
  const fixed = (x, digits) => x.toLocaleString('en-US',
      {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const count = (x) => Math.round(x).toLocaleString('en-US');
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : word.endsWith('ch') ? 'es' : 's'}`;
  // Cells of an [L, M] array: their mean over the layers, or over the micro-batches.
  const byMicroBatch = (cells) => range(M).map((m) => mean(range(L).map((l) => cells[l * M + m])));
  const byLayer = (cells) => range(L).map((l) => mean(cells.slice(l * M, (l + 1) * M)));
  function decode(array) {  // little-endian unsigned integers in base64
    const text = atob(array.base64);
    const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
    return array.type === 'u2' ? new Uint16Array(bytes.buffer) : new Uint32Array(bytes.buffer);
  }
  const loads = {before: decode(data.rank_loads.before), after: decode(data.rank_loads.after)};
  const layerName = data.layer_ids.map((id) => String(id));

  // ---- charts ----
  const coarse = matchMedia('(pointer: coarse)').matches;  // a finger scrolls, it does not zoom
  const narrow = () => innerWidth < 560;
  const CONFIG = {
    responsive: true, displaylogo: false, displayModeBar: coarse ? false : 'hover',
    modeBarButtonsToRemove: ['select2d', 'lasso2d', 'zoomIn2d', 'zoomOut2d', 'autoScale2d', 'pan2d'],
  };
  const axis = (title, more) => Object.assign({
    title: {text: title, font: {size: 12, color: SOFT}, standoff: 8}, automargin: true,
    gridcolor: LINE, linecolor: '#b9c2cc', zeroline: false, fixedrange: coarse,
    tickfont: {size: 11, color: SOFT}, ticks: '',
  }, more);
  const microBatchAxis = (more) => axis('micro-batch', Object.assign(
      {showgrid: false, tick0: 0, dtick: Math.max(1, Math.ceil(M / (narrow() ? 8 : 16))), range: [-0.5, M - 0.5]}, more));
  const layerAxis = (more) => axis('layer', Object.assign({
    showgrid: false, type: 'category', range: [-0.5, L - 0.5], tickangle: 0, tickmode: 'array',
    tickvals: layerName.filter((_, l) => l % Math.max(1, Math.ceil(L / (narrow() ? 8 : 16))) === 0),
  }, more));
  function draw(id, traces, height, layout) {
    return Plotly.react(at(id), traces, Object.assign({
      height, margin: {l: 8, r: 10, t: 34, b: 8}, hovermode: 'closest', bargap: 0.25,
      font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: INK},
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      hoverlabel: {bgcolor: '#fff', bordercolor: '#b9c2cc', font: {color: INK, size: 12}},
      legend: {orientation: 'h', x: 0, y: 1, yanchor: 'bottom', traceorder: 'normal',
               font: {size: 12}, itemclick: coarse ? false : 'toggle'},
    }, layout), CONFIG);
  }
  function sayEmpty(id, height, text) {
    at(id).className = 'chart empty';
    at(id).style.height = `${height}px`;
    at(id).textContent = text;
  }

  // ---- head ----
  function drawHead() {
    const faster = fixed(ours.throughput_vs_none, 2), eplb = fixed(ours.throughput_vs_eplb, 2);
    const balanced = none.imbalance - ours.imbalance < 0.005;
    at('headline').textContent = (balanced
        ? `This batch is balanced as it is, at an imbalance of ${fixed(none.imbalance, 2)}: by the cost `
        : `Imbalance falls from ${fixed(none.imbalance, 2)} to ${fixed(ours.imbalance, 2)}: by the cost `) +
        `model the MoE layers run ${faster}× as fast as unbalanced, ${eplb}× as fast as with EPLB, ` +
        `at ${fixed(100 * ours.throughput_vs_ideal, 1)} % of the ideal.`;
    at('batch').textContent =
        `${data.trace} · ${plural(L, 'layer')} of ${plural(E, 'expert')}, top-${data.top_k} · ` +
        `${plural(M, 'micro-batch')} · ${plural(data.nodes, 'node')} of ` +
        `${plural(data.gpus_per_node, 'GPU')}, ${plural(data.replica_slots, 'replica slot')} each · ` +
        `${count(data.pairs)} (token, choice) pairs`;
    document.title = `ReLibra report: ${data.trace}`;
    const cards = [
      ['Imbalance', `${fixed(none.imbalance, 2)} → ${fixed(ours.imbalance, 2)}`,
       `most loaded rank / mean; no plan can go below ${fixed(data.lower_bound, 3)}`, 'main'],
      ['Against no balancing', `${faster}×`, 'throughput of the MoE layers, modelled', 'main'],
      ['Against EPLB', `${eplb}×`, 'though EPLB is told this batch’s totals', 'main'],
      ['Of the ideal', `${fixed(100 * ours.throughput_vs_ideal, 1)} %`,
       `${fixed(100 * ours.throughput_vs_ideal_hidden, 1)} % where copies and moves are hidden`, 'main'],
      ['Price', `${fixed(ours.copies_per_node, 1)} copies`,
       `a node, layer and micro-batch; ${plural(ours.moves, 'move')}, ` +
       `${plural(ours.bridges, 'bridge')} a step`, ''],
      ['Planned in', data.plan_seconds < 1 ? `${fixed(1e3 * data.plan_seconds, 0)} ms`
                                           : `${fixed(data.plan_seconds, 2)} s`,
       'the whole step, on the machine that wrote this report', ''],
    ];
    for (const [name, figure, more, kind] of cards) {
      const card = document.createElement('div');
      card.className = `card ${kind}`;
      for (const [tag, cls, text] of [['span', 'name', name], ['b', '', figure], ['span', 'more', more]]) {
        const line = document.createElement(tag);
        line.className = cls;
        line.textContent = text;
        card.append(line);
      }
      at('key-figures').append(card);
    }
    const model = `${data.model} on ${data.hardware}, top-${data.top_k}`;
    at('time-note').textContent = `A model (${model}), not a measurement.` +
        (ours.throughput_vs_none < 1 ? ' For so few tokens copies and moves cost more than they save.' : '');
    at('time-words').textContent =
        `Modelled for the expert sizes of ${model}: grouped GEMMs, dispatch and combine, and ` +
        `${fixed(100 * data.exposure, 0)} % of copies and moves in the open; no attention, no overlap.` +
        (data.model_experts === E ? '' : ` The trace has ${E} experts, the model ${data.model_experts}.`);
    at('footer').textContent = `relibra ${data.version}. This file needs no network.` +
        (data.missing_share > 0 ? ` Routes of ${fixed(100 * data.missing_share, 2)} % of the tokens were ` +
        'not recorded; they are spread by their layer’s mean.' : '');
  }

  function drawPolicies() {
    const columns = [
      ['Policy', null],
      ['Imbalance', (p) => fixed(p.imbalance, 3)],
      ['p99', (p) => fixed(p.imbalance_p99, 3)],
      ['Nodes', (p) => fixed(p.node_imbalance, 3)],
      ['× none', (p) => fixed(p.throughput_vs_none, 2)],
      ['% ideal', (p) => fixed(100 * p.throughput_vs_ideal, 1)],
      ['Copies/node', (p) => fixed(p.copies_per_node, 1)],
      ['Moves', (p) => count(p.moves)],
      ['Bridges', (p) => count(p.bridges)],
    ];
    const head = at('policies').createTHead().insertRow();
    for (const [name] of columns) {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.textContent = name;
      head.append(cell);
    }
    const body = at('policies').createTBody();
    for (const policy of data.policies) {
      const row = body.insertRow();
      if (policy === ours) row.className = 'ours';
      const name = document.createElement('th');
      name.scope = 'row';
      const swatch = document.createElement('span');
      swatch.className = 'swatch';
      swatch.style.background = POLICY[policy.policy].color;
      name.append(swatch, POLICY[policy.policy].name);
      row.append(name);
      for (const [, figure] of columns.slice(1)) row.insertCell().textContent = figure(policy);
    }
  }

  function drawStepTime() {
    const most = Math.max(...data.policies.map((p) => p.step_seconds));
    const [unit, scale] = most < 10 ? ['ms', 1e3] : ['s', 1];
    const digits = most * scale < 10 ? 2 : most * scale < 1000 ? 1 : 0;
    const names = data.policies.map((p) => POLICY[p.policy].name);
    const parts = [['Compute', 'compute_seconds', SKY], ['All-to-all', 'all_to_all_seconds', GREEN],
                   ['Copies', 'copy_seconds', PINK], ['Moves', 'move_seconds', RED]];
    const traces = parts.map(([name, key, color]) => ({
      type: 'bar', orientation: 'h', name, y: names, x: data.policies.map((p) => p[key] * scale),
      marker: {color}, hovertemplate: `%{y}: ${name.toLowerCase()} %{x:,.${digits}f} ${unit}<extra></extra>`,
    }));
    draw('step-time', traces, 236, {
      barmode: 'stack', bargap: 0.38,
      xaxis: axis(`modelled time of a step (${unit})`, {range: [0, most * scale * 1.16 || 1], tickformat: ',~r'}),
      yaxis: axis('', {autorange: 'reversed', showgrid: false, tickfont: {size: 12, color: INK}, ticksuffix: ' '}),
      annotations: data.policies.map((p) => ({
        x: p.step_seconds * scale, y: POLICY[p.policy].name, xanchor: 'left', xshift: 5, showarrow: false,
        text: fixed(p.step_seconds * scale, digits), font: {size: 12, color: INK},
      })),
    });
  }

  const lines = (values, x, hover) => data.policies.map((p) => ({
    type: 'scatter', name: POLICY[p.policy].name, x, y: values(p.imbalance_by_cell),
    mode: x.length <= 64 ? 'lines+markers' : 'lines',
    line: {color: POLICY[p.policy].color, width: p === ours ? 2.6 : 1.8,
           dash: p.policy === 'ideal' ? 'dot' : 'solid'},
    marker: {size: p.policy === 'ideal' && x.length > 1 ? 0.1 : 5},
    hovertemplate: `${POLICY[p.policy].name}, ${hover} %{x}: %{y:.3f}<extra></extra>`,
  }));

  function drawImbalance() {
    draw('imbalance', lines(byMicroBatch, range(M), 'micro-batch'), 300, {
      xaxis: microBatchAxis(), yaxis: axis('imbalance (max / mean)', {rangemode: 'normal', nticks: 6}),
    });
  }

  function drawLayerImbalance(shown) {
    draw('layer-imbalance', lines(byLayer, layerName, 'layer'), 250, {
      xaxis: layerAxis(), yaxis: axis('imbalance (max / mean)', {nticks: 6}),
      shapes: [{type: 'rect', xref: 'x', yref: 'paper', x0: shown - 0.5, x1: shown + 0.5, y0: 0, y1: 1,
                fillcolor: '#0072b2', opacity: 0.1, line: {width: 0}, layer: 'below'}],
    });
  }

  // ---- one layer ----
  function drawRamp(stops) {
    at('ramp').style.background =
        `linear-gradient(90deg, ${stops.map(([p, c]) => `${c} ${100 * p}%`).join(', ')})`;
    at('ramp-mean').style.left = `${100 / heatMost}%`;
    at('ramp-most').textContent =
        `${fixed(heatMost, 1)}${none.imbalance_max > heatMost ? ' or more' : ''}`;
  }

  function drawHeat(id, rankLoads, layer, stops) {
    const tokens = range(P).map((r) => range(M).map((m) => rankLoads[(layer * M + m) * P + r]));
    const means = range(M).map((m) => mean(tokens.map((row) => row[m])));
    const ratios = tokens.map((row) => row.map((n, m) => means[m] ? n / means[m] : 1));
    const perTick = Math.ceil(data.nodes / 16) * data.gpus_per_node;
    draw(id, [{
      type: 'heatmap', z: ratios, customdata: tokens, x: range(M), y: range(P), zmin: 0, zmax: heatMost,
      colorscale: stops, showscale: false, xgap: M <= 40 ? 1 : 0, ygap: P <= 40 ? 1 : 0,
      hovertemplate: 'rank %{y}, micro-batch %{x}<br>%{customdata:,} pairs, %{z:.3f} × mean<extra></extra>',
    }], Math.min(520, Math.max(230, 80 + 6 * P)), {
      margin: {l: 8, r: 10, t: 8, b: 8}, xaxis: microBatchAxis(),
      yaxis: axis('rank', {autorange: 'reversed', showgrid: false, tick0: 0,
                           dtick: data.nodes > 1 ? perTick : Math.ceil(P / 16)}),
      shapes: range(data.nodes - 1).map((n) => ({
        type: 'line', xref: 'paper', x0: 0, x1: 1, y0: (n + 1) * data.gpus_per_node - 0.5,
        y1: (n + 1) * data.gpus_per_node - 0.5, line: {color: '#7b8794', width: 1},
      })),
    });
  }

  // One scale for all layers, so that they compare; few cells are above its end.
  const heatMost = Math.min(4, Math.max(1.5, Math.ceil(2 * none.imbalance_max) / 2));
  function drawHeats(layer) {
    // The mean is nearly white, less is blue, more is orange to brown.
    const one = 1 / heatMost, up = (share) => one + (1 - one) * share;
    const stops = [[0, '#2c7bb6'], [one * 0.6, '#9ecae1'], [one, '#f7f7f5'], [up(0.25), '#fdb863'],
                   [up(0.6), RED], [1, '#7f2704']];
    drawRamp(stops);
    drawHeat('heat-before', loads.before, layer, stops);
    drawHeat('heat-after', loads.after, layer, stops);
  }

  function drawExperts(layer) {
    const slice = (list) => list.slice(layer * E, (layer + 1) * E);
    const sums = slice(data.expert_loads), peaks = slice(data.expert_peaks), copied = slice(data.expert_copied);
    const average = mean(sums) || 1;
    const order = range(E).sort((a, b) => sums[b] - sums[a] || a - b);
    const name = (e) => String(e);
    const bars = (label, color, keep) => {
      const chosen = order.filter(keep);
      return {
        type: 'bar', name: label, x: chosen.map(name), y: chosen.map((e) => sums[e] / average),
        customdata: chosen.map((e) => [sums[e], copied[e]]), marker: {color},
        hovertemplate: 'expert %{x}: %{y:.2f} × the mean expert<br>%{customdata[0]:,} pairs, copied in ' +
            `%{customdata[1]} of ${plural(M, 'micro-batch')}<extra></extra>`,
      };
    };
    const every = Math.ceil(E / (narrow() ? 10 : 32));
    draw('experts', [
      bars('with copies', POLICY.relibra.color, (e) => copied[e] > 0),
      bars('never copied', '#b9c2cc', (e) => copied[e] === 0),
      {
        type: 'scatter', mode: 'markers', name: 'its highest micro-batch', x: order.map(name),
        y: order.map((e) => peaks[e]), marker: {symbol: 'line-ew', size: narrow() ? 3 : 7, line: {width: 2, color: RED}},
        hovertemplate: 'expert %{x}: %{y:.2f} × the mean expert in its highest micro-batch<extra></extra>',
      },
    ], 300, {
      barmode: 'overlay', bargap: 0.2,
      xaxis: axis('expert, most popular first', {
        type: 'category', categoryorder: 'array', categoryarray: order.map(name), showgrid: false,
        range: [-0.6, E - 0.4], tickmode: 'array', tickvals: order.filter((_, i) => i % every === 0).map(name),
        tickangle: 0,
      }),
      yaxis: axis('load / mean expert', {rangemode: 'tozero', nticks: 6}),
    });
  }

  function showLayer(layer) {
    at('layer').value = String(layer);
    at('layer-before').disabled = layer === 0;
    at('layer-after').disabled = layer === L - 1;
    const figure = (p) => byLayer(p.imbalance_by_cell)[layer];
    at('layer-figures').textContent = `imbalance ${fixed(figure(none), 2)} before, ` +
        `${fixed(figure(policies.eplb), 2)} with EPLB, ${fixed(figure(ours), 3)} with ReLibra`;
    at('before-figure').textContent = `· imbalance ${fixed(figure(none), 2)}`;
    at('after-figure').textContent = `· imbalance ${fixed(figure(ours), 3)}`;
    drawLayerImbalance(layer);
    drawHeats(layer);
    drawExperts(layer);
  }

  function addPicker() {
    const before = byLayer(none.imbalance_by_cell), after = byLayer(ours.imbalance_by_cell);
    range(L).forEach((l) => at('layer').add(
        new Option(`Layer ${layerName[l]}: ${fixed(before[l], 2)} → ${fixed(after[l], 2)}`, String(l))));
    at('layer').addEventListener('change', () => showLayer(Number(at('layer').value)));
    at('layer-before').addEventListener('click', () => showLayer(Number(at('layer').value) - 1));
    at('layer-after').addEventListener('click', () => showLayer(Number(at('layer').value) + 1));
    showLayer(before.indexOf(Math.max(...before)));  // the worst one first
    at('layer-imbalance').on('plotly_click', (event) => showLayer(layerName.indexOf(event.points[0].x)));
  }

  // ---- copies, moves, limits ----
  const column = (name, x, y, color, hover) => ({
    type: 'bar', name, x, y, marker: {color}, hovertemplate: `${hover}<extra>${name}</extra>`,
  });

  function drawCopies() {
    if (!ours.copies) return sayEmpty('copies', 260, 'This plan makes no copies.');
    const perNode = (cells) => byMicroBatch(cells).map((n) => n / data.nodes);
    const hover = 'micro-batch %{x}: %{y:.2f} a node and layer';
    draw('copies', [
      column('Fetched for it', range(M), perNode(data.copies.fetched), PINK, hover),
      column('Kept from the one before', range(M), perNode(data.copies.kept), PALE_PINK, hover),
    ], 260, {barmode: 'stack', xaxis: microBatchAxis(), yaxis: axis('copies a node and layer', {nticks: 6})});
  }

  function drawMoves() {
    if (!ours.moves && !ours.bridges) {
      return sayEmpty('moves', 260, 'This plan moves no expert and builds no bridge.');
    }
    const hover = 'layer %{x}: %{y}';
    draw('moves', [
      column('Moves inside a node', layerName, data.moves.inside, SKY, hover),
      column('Moves between nodes', layerName, data.moves.across, RED, hover),
      column('Bridges', layerName, data.moves.bridges, GREEN, hover),
    ], 260, {
      barmode: 'stack', xaxis: layerAxis(),
      yaxis: axis('experts', {nticks: 6, tickformat: ',d', rangemode: 'tozero'}),
    });
  }

  function drawLimits() {
    const kinds = [
      ['Hottest expert', 'hottest_expert', RED,
       'One expert is more than a node’s fair share. Only bridges spread it further: allow more (`--bridges`).'],
      ['Node bound', 'node_bound', GREEN,
       'Whole nodes differ in this micro-batch under the step’s homes. More moves (`--max-moves`), ' +
       '`--effort thorough`, or packing sequences into alike micro-batches help.'],
      ['Slots', 'slots', PINK,
       'Ranks differ inside a node. More replica slots (`--replica-slots`), or a lower `--replica-cost`, help.'],
    ];
    const means = kinds.map(([, key]) => 100 * mean(data.limits[key]));
    const total = means.reduce((a, b) => a + b, 0);
    const least = kinds[means.indexOf(Math.max(...means))][0].toLowerCase();
    at('limits-lead').textContent = total < 0.005
        ? 'Nothing: the plan is balanced to the token.'
        : `${total < 0.5 ? 'Little: the' : 'The'} most loaded rank is ${fixed(total, 2)} % above the mean, ` +
          `most of it by: ${least}.`;
    kinds.forEach(([name, , color, text], i) => {
      const term = document.createElement('dt'), words = document.createElement('dd');
      const swatch = document.createElement('span'), figure = document.createElement('b');
      swatch.className = 'swatch';
      swatch.style.background = color;
      figure.textContent = `${fixed(means[i], 2)} %`;
      term.append(swatch, name, figure);
      text.split('`').forEach((part, n) => {  // between backquotes stands a flag
        const piece = document.createElement(n % 2 ? 'code' : 'span');
        piece.textContent = part;
        words.append(piece);
      });
      at('limits-list').append(term, words);
    });
    const heights = kinds.map(([, key]) => byMicroBatch(data.limits[key]).map((x) => 100 * x));
    const most = Math.max(...range(M).map((m) => heights[0][m] + heights[1][m] + heights[2][m]));
    const hover = 'micro-batch %{x}: %{y:.2f} % above the mean';
    // The axis shows one per cent at least, so that a crumb does not look like a mountain.
    draw('limits', kinds.map(([name, , color], i) => column(name, range(M), heights[i], color, hover)), 290, {
      barmode: 'stack', showlegend: false, margin: {l: 8, r: 10, t: 10, b: 8}, xaxis: microBatchAxis(),
      yaxis: axis('most loaded rank above the mean (%)', {nticks: 6, range: [0, Math.max(1, 1.08 * most)]}),
    });
  }

  drawHead();
  drawPolicies();
  drawStepTime();
  drawImbalance();
  addPicker();
  drawCopies();
  drawMoves();
  drawLimits();
})();
