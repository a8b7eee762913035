"""Small plots as SVG, without any library: lines over an axis, bars in groups, and bars of time."""

import textwrap

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 760, 70, 170, 34, 44
COLOURS = ("#2f5f9e", "#d9822b", "#4c9a5b", "#a0457d", "#7aa6d8", "#8a8a8a", "#b8a12f", "#c0504d", "#3b3b3b", "#6fb7b0")


def escaped(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(x, y, words, anchor="start", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escaped(words)}</text>'


def page(height, body):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def short(number):
    """A number for an axis."""
    if number == 0:
        return "0"
    if abs(number) >= 10_000 or abs(number) < 0.001:
        return f"{number:.0e}"
    return f"{number:g}" if abs(number) < 1 else f"{number:.4g}"


def steps(least, most):
    """Round numbers between two."""
    span = (most - least) or 1
    size = 10 ** len(str(int(span / 5))) / 10 if span >= 5 else 1
    while span / size < 3:
        size /= 2
    while span / size > 8:
        size *= 2
    first = int(least / size) * size
    return [first + size * at for at in range(int((most - first) / size) + 1)]


class Axes:
    """Where numbers are in a plot, and the lines around it."""

    def __init__(self, xs, ys, height, top, log=(False, False)):
        self.log, self.top, self.bottom = log, top + TOP, top + height - BOTTOM
        self.x = (min(xs), max(xs))
        self.y = (min(ys), max(ys)) if log[1] else (min(0, min(ys)), max(ys) * 1.05 or 1)

    @staticmethod
    def part(number, ends, is_log):
        if is_log:
            import math

            number, ends = math.log10(number), [math.log10(end) for end in ends]
        return (number - ends[0]) / ((ends[1] - ends[0]) or 1)

    def at(self, x, y):
        across, up = self.part(x, self.x, self.log[0]), self.part(y, self.y, self.log[1])
        return LEFT + across * (WIDTH - LEFT - RIGHT), self.bottom - up * (self.bottom - self.top)

    @staticmethod
    def marks(ends, is_log):
        if not is_log:
            return steps(*ends)
        import math

        powers = range(math.ceil(math.log10(ends[0]) - 1e-9), math.floor(math.log10(ends[1]) + 1e-9) + 1)
        every = max(1, len(powers) // 6)
        return [10.0**power for power in powers][::every]

    def frame(self, title, x_name, y_name):
        right = WIDTH - RIGHT
        body = [text(8, self.top - 14, title, size=14)]
        for mark in self.marks(self.y, self.log[1]):
            if self.y[0] <= mark <= self.y[1]:
                y = self.at(self.x[0], mark)[1]
                body.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>')
                body.append(text(LEFT - 6, y + 4, short(mark), "end"))
        for mark in self.marks(self.x, self.log[0]):
            if self.x[0] <= mark <= self.x[1]:
                x = self.at(mark, self.y[0])[0]
                body.append(text(x, self.bottom + 16, short(mark), "middle"))
        body.append(f'<path d="M{LEFT} {self.top}V{self.bottom}H{right}" fill="none" stroke="black"/>')
        body.append(text((LEFT + right) / 2, self.bottom + 34, x_name, "middle"))
        body.append(f'<text transform="translate(14 {(self.top + self.bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">{escaped(y_name)}</text>')
        return body


def lines(title, x_name, y_name, series, height=260, top=0, log=(False, False), shades=()):
    """One plot of lines: `series` are pairs of a name and its points. `shades` are stretches of x that are marked."""
    points = [point for _, some in series for point in some]
    axes = Axes([x for x, _ in points], [y for _, y in points], height, top, log)
    body = []
    for begin, end in shades:
        left, right = axes.at(begin, axes.y[0])[0], axes.at(end, axes.y[0])[0]
        body.append(
            f'<rect x="{left:.1f}" y="{axes.top}" width="{max(right - left, 1):.1f}" height="{axes.bottom - axes.top}" fill="#f3d9d9"/>'
        )
    body += axes.frame(title, x_name, y_name)
    for number, (name, some) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.at(*point) for point in some))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(series) > 1:
            y = axes.top + 14 + 16 * number
            body.append(f'<rect x="{WIDTH - RIGHT + 10}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
            body.append(text(WIDTH - RIGHT + 25, y, name))
    return body


def bars(title, y_name, groups, names, height=260, top=0, line=None):
    """Bars in groups: `groups` are pairs of a name and its values, each (middle, least, most) or None, in the order of `names`. `line` is
    a height that is marked."""
    tops = [value[2] for _, values in groups for value in values if value]
    axes = Axes((0, len(groups)), (0, max(tops + ([line] if line else []))), height, top)
    body = [part for part in axes.frame(title, "", y_name)]
    # The numbers below belong to no axis here.
    body = [part for part in body if f'y="{axes.bottom + 16:.1f}"' not in part]
    wide = (WIDTH - LEFT - RIGHT) / len(groups)
    each = wide * 0.8 / len(names)
    for number, (group, values) in enumerate(groups):
        body.append(text(LEFT + wide * (number + 0.5), axes.bottom + 16, group, "middle"))
        for at, value in enumerate(values):
            if value is None:
                continue
            x, y = LEFT + wide * (number + 0.1) + each * at, axes.at(0, value[0])[1]
            low, high = axes.at(0, value[1])[1], axes.at(0, value[2])[1]
            middle = x + each / 2
            body.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{each * 0.9:.1f}" height="{axes.bottom - y:.1f}" fill="{COLOURS[at % len(COLOURS)]}"/>'
            )
            body.append(f'<line x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}" stroke="black"/>')
    if line:
        y = axes.at(0, line)[1]
        body.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="black" stroke-dasharray="4 3"/>')
    if len(names) > 1:
        for at, name in enumerate(names):
            y = axes.top + 14 + 16 * at
            body.append(f'<rect x="{WIDTH - RIGHT + 10}" y="{y - 9}" width="10" height="10" fill="{COLOURS[at % len(COLOURS)]}"/>')
            body.append(text(WIDTH - RIGHT + 25, y, name))
    return body


def actions(title, x_name, rows, top=0):
    """Bars of time, one below the other, each with what was done in it: `rows` are triples of a name, a length and the actions in their order."""
    most = max(length for _, length, _ in rows)
    wide, each = WIDTH - LEFT - RIGHT, 66
    body = [text(8, top + 20, title, size=14)]
    for number, (name, length, done) in enumerate(rows):
        y = top + TOP + each * number
        body.append(text(8, y + 12, f"{name}: {length:.3g} {x_name}"))
        body.append(f'<rect x="{LEFT}" y="{y + 18}" width="{max(2, wide * length / most):.1f}" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>')
        said = textwrap.wrap(" \u2192 ".join(done), 110)
        body += [text(LEFT, y + 42 + 13 * at, line, size=11) for at, line in enumerate(said)]
    return body


def write(path, *plots, height=260):
    """Writes plots, one below the other. Each is a function of where it begins."""
    body = [part for number, plot in enumerate(plots) for part in plot(number * height)]
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(height * len(plots), body))
