// Package bodies stores bodies that are too large for an envelope. Each is an object:
// sealed chunks under a random key that is used for this one plaintext, named by the
// SHA-256 of its manifest. Whoever knows the name can check every chunk alone, so an
// object may come from several holders, in any order, and is stored and sent once
// however many tasks refer to it.
//
//	plain ─▶ [zstd] ─▶ chunks ─▶ AEAD ─▶ Merkle root ─▶ manifest ─▶ name
//	Seal ──────────────▶ NAME ──▶ Open (plain), Source (chunks with their paths)
//	Receive ─▶ NAME.part ──▲ the last chunk is durable
//
// An object exists under its name with all its bytes, durably, or it is a part, which
// survives a crash with the chunks that were synced. The store keeps no record of who
// needs what: [Store.Sweep] asks the records, and spares what was written or released
// since it began to ask. The rule for the caller: the object is durable before the record
// that refers to it, and is pinned until that record is.
package bodies
