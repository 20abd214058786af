// Package ledger keeps entries on disk in the order in which they were queued,
// with one sync for all that queued meanwhile. What was answered is there after
// any crash, and nothing else is. It does not know what an entry means.
//
//	Queue ─┐                       ┌────── one batch ──────┐
//	Queue ─┼─▶ queue ─▶ committer ─▶ encode, write, sync   ─▶ After, in order ─▶ Wait
//	Queue ─┘      ▲                └───────────────────────┘
//	              └── entries queued during a sync are the next batch
//
// One goroutine, the committer, writes. It never waits for a batch to fill: a
// batch has what queued during the last one, at most 4096 entries and 1 MiB.
// A batch of [Entry.Relaxed] entries is answered without a sync; it survives the
// end of the process, and a power cut only once the next sync has been made, which
// begins at most [Config.SyncEvery] later, or after 4 MiB.
//
// # Files
//
//	LEDGER                        format, id, when it was made
//	00000000000000000001.seg      a segment: batches; its name is the index of the first
//	checkpoint-00000000000000017  the state of the caller as of index 17
//	spare-1                       a file of zeros that will be a segment
//	torn-20261122T150405.000Z-... what a repair took off the end of the log
//
// All numbers are big endian. A segment begins with a header of 64 bytes: magic
// BFLEDGR1, version 4, size of the file 4, ledger id 16, index of the first batch
// 8, term 8, CRC of the batch before it 4, zeros 8, CRC of the header 4. Batches
// follow at multiples of 8, each with a header of 40 bytes: magic BFLB, length 4
// (without padding), CRC 4, kind 1, flags 1, number of entries 2, index 8, term 8,
// time 8 (Unix ms). An entry is its length 4, the CRC of its data 4, and the data.
// A segment that is complete ends with an empty batch of its own kind. In a ledger that
// was rebuilt a batch of [KindLost] takes the place of what could not be read. Indexes
// begin at 1 and have no gaps; the term is 0 in a ledger that is not replicated.
//
// Every CRC is a CRC-32C (RFC 3720). That of a batch continues the CRC of the
// batch before it and covers the id of the ledger, so that what a recycled file
// still has of its earlier batches never verifies, and neither does anything that
// the data of an entry may imitate.
//
// Segments are written full of zeros before they are needed, and used again once
// they are released, unless a snapshot has the file, too, by a hard link: a sync of an
// overwrite changes no metadata. A batch is
// followed by at least 40 zeros, up to the end of a page of 4 KiB, so that the end
// of the log can be told from the old content of a recycled file.
//
// # After a crash
//
// A flag in each batch tells whether everything before it was on disk when it was
// written, and a segment is complete, on disk, before the next one begins. So an
// unreadable batch is either the end of the log, torn by a power cut before it was
// answered, or damage: something behind it was written when it was on disk. Open
// copies a torn end to a file, replaces it with zeros and goes on; it refuses
// damage with a [DamageError]. Nothing was written behind the last batches when they
// were on disk: damage to them is taken for a torn end, and the copy keeps it. A last
// segment whose file was removed is missed only if a checkpoint knows of a batch in
// it. Open reads the segments since the newest checkpoint; what is before it is
// verified when it is read, and by [Check].
//
// The first write or sync of the log that fails stops it: what was being written
// is on disk or not. Every later call returns [store.ErrFailed] until the ledger
// is closed and opened again.
package ledger
