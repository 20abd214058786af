package identity

// A domain is the prefix of every byte string that is signed, hashed or used for
// derivation, and belongs to one type of record. Changing one makes all records of
// its type unreadable.
const (
	domainGroup      = "balefire/v1/group\x00"   // signed: the root of a group
	domainTask       = "balefire/v1/task\x00"    // leaf of a group: an envelope with a task
	domainResult     = "balefire/v1/result\x00"  // leaf of a group: an envelope with a result
	domainReceipt    = "balefire/v1/receipt\x00" // leaf of a group: a statement
	domainMail       = "balefire/v1/mail\x00"    // leaf of a group: a statement about a mail
	domainNode       = "balefire/v1/node\x00"    // signed: a node record
	domainMember     = "balefire/v1/member\x00"  // signed: a membership certificate
	domainKey        = "balefire/v1/kemkey\x00"  // signed: a key record
	domainJoin       = "balefire/v1/join\x00"    // MAC: the proof of holding a ticket
	domainTicket     = "balefire/v1/ticket\x00"  // hash: a ticket's checksum and its id
	domainKeyID      = "balefire/v1/keyid\x00"   // hash: the short name of a sealing key
	domainKeyFile    = "balefire/v1/keyfile\x00" // hash: the checksum of a key file
	domainWrappedKey = "balefire/v1/slot\x00"    // HPKE info and export: the key that wraps content keys
	domainCommit     = "balefire/v1/commit\x00"  // hash: the commitment to a content key
	domainBody       = "balefire/v1/body\x00"    // derived: the key of an envelope's body

	domainAccusation = "balefire/v1/accusation\x00" // signed: that another node did not answer
	domainRevocation = "balefire/v1/revocation\x00" // signed: the revocation of a certificate
	domainDeed       = "balefire/v1/deed\x00"       // signed: the home of a queue
)
