//! Child processes that outlive neither their owner nor this process.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running child; dropping it kills it and waits until it is gone, so that its files can be removed after it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program`, with its standard error in the file `log`.
    pub(super) fn start(program: &Path, args: &[String], log: PathBuf) -> io::Result<Self> {
        let mut command = match find_program("setpriv") {
            // With us gone by SIGKILL, no destructor runs: the kernel ends the child then. `setpriv` is part of util-linux;
            // where it is missing, only this last resort is.
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            // A terminal's Ctrl-C is for us alone; we end our children in our own order.
            .process_group(0);
        Ok(Self { child: spawn(command)?, log })
    }

    /// The process ID.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub(super) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends a signal; one that has ended already does not mind.
    pub(super) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        kill(Pid::from_raw(pid), signal).map_err(io::Error::from)
    }

    /// Sends a signal that ends it, and waits for the end.
    pub(super) fn end(&mut self, signal: Signal) -> io::Result<ExitStatus> {
        self.signal(signal)?;
        // One that is stopped does not see a SIGTERM.
        self.signal(Signal::SIGCONT)?;
        self.child.wait()
    }

    /// The end of what it wrote to its standard error.
    pub(super) fn last_lines(&self, count: usize) -> Vec<String> {
        let text = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.iter().skip(lines.len().saturating_sub(count)).map(|&line| line.to_owned()).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; both fail only for a child that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a program is on the `PATH`.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

type Job = (Command, SyncSender<io::Result<Child>>);

/// Spawns from one thread that lives as long as this process: the kernel's parent-death signal follows the *thread* that
/// forked, and threads of a runtime come and go.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = sync_channel::<Job>(1);
        thread::spawn(move || {
            for (mut command, reply) in queue {
                // A requester that no longer waits drops the child's handle only; it is killed with this process.
                let _ = reply.send(command.spawn());
            }
        });
        jobs
    });
    let (reply, answer) = sync_channel(1);
    spawner.send((command, reply)).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
