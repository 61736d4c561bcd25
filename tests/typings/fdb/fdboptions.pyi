_Options = dict[str, tuple[int, str, type | None, str | None]]

NetworkOption: _Options
DatabaseOption: _Options
TransactionOption: _Options
StreamingMode: _Options
MutationType: _Options
ConflictRangeType: _Options
ErrorPredicate: _Options
