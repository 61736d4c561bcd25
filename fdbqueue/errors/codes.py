"""The codes of FoundationDB's errors, and their descriptions."""

from __future__ import annotations

# FoundationDB's codes and names (flow/error_definitions.h), limited to the errors that the embedded
# engine, or a wrapper that injects faults, can raise.
DESCRIPTIONS = {
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1039: "The protocol version of the cluster has changed",
    1042: "CommitProxy commit memory limit exceeded",
    1051: "Batch GRV request rate limit exceeded",
    1078: "GetReadVersion proxy memory limit exceeded",
    1079: "Blob granule request failed",
    1101: "Asynchronous operation cancelled",
    1213: "Transaction tag is being throttled",
    1223: "Transaction tag is being throttled by a proxy",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2007: "Option not valid in this context",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2017: "Operation issued while a commit was outstanding",
    2018: "Unrecognized atomic mutation type",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2108: "Operation is not supported",
    2210: "Exact streaming mode requires limits, but none were given",
    4000: "An unknown error occurred",
}
