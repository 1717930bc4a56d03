//! One JSON object a line. The ids of the request's trace are fields of that object and not of a nested one, because collectors
//! expect them there.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::traces::LOG_SPAN;

/// The format of the lines.
pub(super) struct JsonLines(Format<Json>);

impl JsonLines {
    pub(super) fn new() -> Self {
        Self(Format::default().json().flatten_event(true).with_current_span(false).with_span_list(false))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut scope = context.event_scope().into_iter().flatten();
        let Some(request) = scope.find(|span| span.name() == LOG_SPAN) else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        let extensions = request.extensions();
        // Both are objects: the second one's fields follow the first one's.
        let fields = extensions.get::<FormattedFields<N>>().and_then(|fields| fields.strip_prefix('{'));
        match (line.trim_end().strip_suffix('}'), fields) {
            (Some(object), Some(fields)) => writeln!(writer, "{object},{fields}"),
            _ => writer.write_str(&line),
        }
    }
}
