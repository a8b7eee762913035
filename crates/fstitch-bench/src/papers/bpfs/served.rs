//! Through FUSE: BPFS in memory beside a file system in memory that keeps no format, behind the same front end.

use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_fuse::Transport;

use crate::contender::{Contender, Medium, Tools};
use crate::meter::seconds;
use crate::papers::goal::{circumstances, columns, goal_row, plain_row, spread};
use crate::papers::{Setting, strings};
use crate::race::Plan;
use crate::report::Wanted;
use crate::results::{Place, Results, Table};
use crate::workload::len;

/// Of the other one's rate, at least.
const RATE_MIN: f64 = 0.9;
const WORKLOADS: [&str; 2] = ["small", "tree"];

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let repeats = len(setting.scale.of(7, 1));
    let mut table = Table {
        name: "bpfs served".into(),
        title: "BPFS: through FUSE, to a file system in memory".into(),
        is_goal: true,
        about: format!(
            "{} Both in a process of their own, behind the same front end, requests by `/dev/fuse`, in turns: the rate of BPFS in volatile memory, written \
             through, to that of the model of all file systems, which keeps ordered maps and no format (`fuse-memory` in the report). Behind that, \
             microseconds of an operation of each.",
            circumstances(&[("memory", &setting.memory)], repeats)
        ),
        columns: [columns(), strings(["BPFS, us", "memory, us"])].concat(),
        ..Table::default()
    };
    let fstitch = setting.fstitch.clone().context("the program itself is not known")?;
    let mountpoint = tempfile::Builder::new().prefix("bpfs-").tempdir()?;
    let tools = Tools { fstitch, mountpoint: mountpoint.path().canonicalize()? };
    let ours = Contender::BpfsMemory;
    let plan = Plan {
        scale: setting.scale,
        repetitions: u32::try_from(repeats)?,
        time: Duration::from_secs(setting.scale.of(300, 60)),
        contenders: vec![Contender::Memory, ours],
        workloads: WORKLOADS.map(str::to_owned).to_vec(),
        media: vec![Medium { name: "memory", image: setting.memory.join("unused") }],
        scratch: setting.memory.clone(),
        transport: Transport::Device,
    };
    let mut results = Results::default();
    plan.race(&tools, setting.tree, &mut results, &mut |_| Ok(()))?;
    if let Some(gap) = results.gaps.first() {
        anyhow::bail!("{}: {}", gap.what, gap.why);
    }
    for (medium, workload, phase) in results.phases() {
        let at = Place { medium: &medium, workload: &workload, phase: &phase };
        let took = |contender| -> Vec<f64> {
            let samples = results.samples(at, contender);
            samples.map(|(_, sample)| sample.work_s * 1e6 / seconds(sample.operations)).collect()
        };
        let (memory, bpfs) = (took(Contender::Memory), took(ours));
        let ratios = memory.iter().zip(&bpfs).map(|(memory, bpfs)| memory / bpfs).collect();
        let what = format!("{workload}: {phase}");
        let row = match workload.as_str() {
            "small" => goal_row(&what, "", spread(ratios)?, Wanted::AtLeast(RATE_MIN)),
            _ => plain_row(&what, "", spread(ratios)?),
        };
        let each = [spread(bpfs)?.median, spread(memory)?.median].map(|us| format!("{us:.1}"));
        table.rows.push([row, each.to_vec()].concat());
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_program_nothing_is_measured() {
        let directory = std::env::temp_dir();
        let setting = Setting {
            scale: crate::workload::Scale::Quick,
            tree: &crate::workload::Tree::made_up(2, 2000),
            disk: directory.clone(),
            memory: directory,
            fstitch: None,
            program: None,
        };
        assert!(table(&setting).unwrap_err().to_string().contains("not known"));
    }
}
