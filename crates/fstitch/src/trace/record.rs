//! `fstitch trace record`: from the control socket into a file, line by line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fstitch_core::{Clock, SystemClock};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::control::client::of_mount_or_image;
use crate::control::trace::{Batch, TraceEvent};
use crate::control::{Request, Response};
use crate::output::{Outcome, text};

/// Arguments of `trace record`.
#[derive(clap::Args)]
#[command(
    after_help = "Ctrl-C ends the recording, as does the unmount; what was recorded until then is kept. One trace at a time can be recorded \
                  of a mount or a stack. Events that come faster than they can be sent are left out, and their number is part of the trace."
)]
pub struct Arguments {
    /// Where the trace is written
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Where the volume is mounted, or the image or device that is
    #[arg(value_name = "MOUNTPOINT|IMAGE")]
    mount: PathBuf,
}

/// What was recorded.
#[derive(Default)]
struct Count {
    events: u64,
    lost: u64,
}

/// Runs `trace record`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let interrupted = catch_interrupts()?;
    let mut connection = of_mount_or_image(&arguments.mount)?;
    let clock = SystemClock::new();
    let head = match connection.ask(&Request::Trace)? {
        Response::TraceBegan(head) => head,
        Response::Error(reason) => bail!("{reason}"),
        other => bail!("an unexpected answer: {other:?}"),
    };
    let writing = || format!("writing {}", arguments.output.display());
    let mut file = BufWriter::new(File::create(&arguments.output).with_context(writing)?);
    let (mut count, mut ended, mut why) = (Count::default(), false, None);
    line(&mut file, &head).with_context(writing)?;
    let limit = arguments.seconds.map(Duration::from_secs);
    loop {
        match connection.next()? {
            Some(Response::Trace(batch)) => count.save(&mut file, &batch).with_context(writing)?,
            Some(Response::TraceEnded) => break,
            Some(Response::Error(reason)) => {
                why = Some(reason);
                break;
            }
            Some(other) => bail!("an unexpected answer: {other:?}"),
            None => {
                why = Some("the mount's daemon has gone".to_owned());
                break;
            }
        }
        let is_over =
            limit.is_some_and(|limit| clock.elapsed() >= limit) || interrupted.load(Ordering::Relaxed);
        if is_over && !std::mem::replace(&mut ended, true) {
            connection.send_no_more()?;
        }
    }
    file.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(writing)?;
    text(&count.describe(clock.elapsed(), why.as_deref()))?;
    Ok(Outcome::SUCCESS)
}

/// From here on the first interrupt only asks for an end; a second one ends the program.
fn catch_interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let code = i32::from(Outcome::INTERRUPTED.0);
        flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .context("handling signals")?;
    }
    Ok(interrupted)
}

fn line(file: &mut impl Write, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")?;
    Ok(())
}

impl Count {
    fn save(&mut self, file: &mut impl Write, batch: &Batch) -> Result<()> {
        for happened in &batch.events {
            line(file, happened)?;
            match happened.event {
                TraceEvent::Lost { events } => self.lost += events,
                _ => self.events += 1,
            }
        }
        Ok(())
    }

    fn describe(&self, took: Duration, why: Option<&str>) -> String {
        let lost = match self.lost {
            0 => String::new(),
            lost => format!(", {lost} more came too fast and are missing"),
        };
        let why = why.map(|why| format!("; it ended because {why}")).unwrap_or_default();
        format!("recorded {} events in {:.1} s{lost}{why}\n", self.events, took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::trace::Happened;

    #[test]
    fn what_is_missing_is_said() {
        let (mut count, mut file) = (Count::default(), Vec::new());
        let happened = |event| Happened { at_us: 7, event };
        let events = vec![happened(TraceEvent::Stalled), happened(TraceEvent::Lost { events: 9 })];
        count.save(&mut file, &Batch { events }).unwrap();
        assert_eq!(
            String::from_utf8(file).unwrap(),
            "{\"at_us\":7,\"event\":\"stalled\"}\n{\"at_us\":7,\"event\":\"lost\",\"events\":9}\n"
        );
        assert_eq!(
            count.describe(Duration::from_millis(1500), Some("it was unmounted")),
            "recorded 1 events in 1.5 s, 9 more came too fast and are missing; it ended because it was unmounted\n"
        );
    }
}
