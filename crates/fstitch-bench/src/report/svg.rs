//! Plots: bars of time, one for each contender.

use std::fmt::Write;

use crate::contender::{Contender, Side, Way};
use crate::results::{Place, Results};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const ROW: f64 = 18.0;

/// The plots of a workload, one below the other: seconds until everything is stable, medians with the least and the most
/// as a line. `None` where nothing was measured.
#[must_use]
pub fn plots(results: &Results, workload: &str) -> Option<String> {
    let (mut body, mut top) = (String::new(), 0.0);
    for (medium, _, phase) in results.phases().iter().filter(|(_, name, _)| name == workload) {
        let at = Place { medium, workload, phase };
        top = bars(&mut body, results, at, top);
    }
    (top > 0.0).then(|| {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
        )
    })
}

/// Draws a phase from `top` on, and returns where it ends.
fn bars(out: &mut String, results: &Results, at: Place<'_>, mut top: f64) -> f64 {
    let contenders = Contender::ALL.into_iter().chain([Contender::Tmpfs]);
    let rows: Vec<_> =
        contenders.filter_map(|one| Some((one, results.spread(at, one, |sample| sample.wall_s)?))).collect();
    let Some(longest) =
        rows.iter().map(|(_, spread)| spread.most).reduce(f64::max).filter(|most| *most > 0.0)
    else {
        return top;
    };
    let scale = (WIDTH - LEFT - 90.0) / longest;
    // A string cannot fail to be written to.
    let _ = writeln!(
        out,
        "<text x=\"8\" y=\"{}\" font-size=\"14\">{} ({}): seconds</text>",
        top + 20.0,
        at.phase,
        at.medium
    );
    top += 28.0;
    for (contender, spread) in rows {
        let (length, middle) = (spread.median * scale, top + ROW / 2.0);
        let (least, most) = (LEFT + spread.least * scale, LEFT + spread.most * scale);
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n<rect x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" \
             height=\"{}\" fill=\"{}\"/>\n<line x1=\"{least:.1}\" y1=\"{middle}\" x2=\"{most:.1}\" y2=\"{middle}\" \
             stroke=\"black\"/>\n<text x=\"{:.1}\" y=\"{}\">{:.3}</text>\n",
            LEFT - 6.0,
            top + 13.0,
            contender.name(),
            top + 3.0,
            ROW - 6.0,
            color(contender),
            most.max(LEFT + length) + 5.0,
            top + 13.0,
            spread.median,
        );
        top += ROW;
    }
    top + 10.0
}

/// Ours in blue (darker in process), the limit of FUSE in grey, others in warm colours.
fn color(contender: Contender) -> &'static str {
    match contender {
        Contender::Defaults
        | Contender::LeftAlone
        | Contender::Mounted(_)
        | Contender::Cached(_)
        | Contender::Following(_)
        | Contender::Bpfs
        | Contender::BpfsMemory
        | Contender::Ext4(Way::Defaults | Way::Mounted)
        | Contender::Ufs(Side::Mounted)
        | Contender::Waffle(Side::Mounted)
        | Contender::DeviceSoft => "#7aa6d8",
        Contender::InProcess(_)
        | Contender::Ext4(Way::InProcess)
        | Contender::Ufs(Side::InProcess)
        | Contender::Waffle(Side::InProcess) => "#2f5f9e",
        Contender::Memory | Contender::DeviceMemory | Contender::Tmpfs => "#b0b0b0",
        Contender::Fuse2fs | Contender::Ext4(Way::Fuse2fs) => "#d9822b",
        Contender::Kernel(_) => "#d9b36c",
    }
}
