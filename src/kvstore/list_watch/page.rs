//! A page under way: asked for while the caller works on the one before.

use tokio_util::task::AbortOnDropHandle;

use crate::kvstore::{ListGate, RangePage, Reads, Session, SessionError};

/// What to ask for.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) from: Vec<u8>,
    pub(super) end: Vec<u8>,
    pub(super) limit: i64,
    /// 0 for the first page: as of now.
    pub(super) revision: i64,
    pub(super) reads: Reads,
}

/// In a task of its own, so that it arrives and is decoded whether the caller looks or not, and so that dropping the
/// caller's future loses nothing. Dropping this ends the task.
#[derive(Debug)]
pub(super) struct PageInFlight {
    pub(super) question: Question,
    task: AbortOnDropHandle<Result<RangePage, SessionError>>,
}

impl PageInFlight {
    pub(super) fn ask(session: &Session, gate: &ListGate, question: Question) -> Self {
        let (session, gate) = (session.clone(), gate.clone());
        let Question { from, end, limit, revision, reads } = question.clone();
        let task =
            tokio::spawn(
                async move { gate.pass(Box::pin(session.list_page(&from, &end, limit, revision, reads))).await },
            );
        Self { question, task: AbortOnDropHandle::new(task) }
    }

    /// The page. Dropping the future loses nothing.
    pub(super) async fn answer(&mut self) -> Result<RangePage, SessionError> {
        match (&mut self.task).await {
            Ok(answer) => answer,
            // Only a runtime that shuts down ends the task; a panic in it is ours to pass on.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(SessionError::ConnectionLost("the runtime shuts down".to_owned())),
            },
        }
    }
}
