// What holds items and groups back, in words.

const HELD_BY = {
  queue_paused: "The queue is paused.",
  queue_concurrency: "As many items of the queue are claimed as its concurrency allows.",
  queue_rate: "As many items of the queue have started as its rate allows.",
  group_paused: "Its group is paused.",
  group_concurrency: "As many items of its group are claimed as their concurrency allows.",
  group_rate: "As many items of its group have started as their rate allows.",
  group_retry: "A failed item of its group, which waits for its next attempt, comes first.",
};

/** Say what holds an item back; `heldBy` is that of the API. */
export const heldText = (heldBy) => HELD_BY[heldBy];

const GROUP_HELD_BY = {
  paused: "paused",
  concurrency: "at its concurrency",
  rate: "at its rate",
  retry: "tries a failed item first",
};

/** Say what holds a group back; `heldBy` is that of the API. */
export const groupHeldText = (heldBy) => GROUP_HELD_BY[heldBy];
