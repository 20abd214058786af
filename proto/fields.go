package proto

// Sizes in bytes and counts of fields that have no name of their own elsewhere.
const (
	maxID        = 16
	maxKeyBytes  = 32 // an Ed25519 public key, which is a PeerID; a content key
	maxDigest    = 32
	maxSignature = 64
	maxPath      = 10 * 32 // of a Merkle tree over MaxGroup leaves, and one step more
	maxSlot      = 2 << 10 // suite 3 takes some 1200
	maxDetails   = 4 << 10
	maxName      = 63 // a DNS label
	maxWord      = 128
	maxText      = 256
	maxDetail    = 256
	maxCause     = 128
	maxAddr      = 256
	maxAddrs     = 32
	maxLabels    = 32
	maxFeatures  = 32
	maxPeers     = 64
)

// A fieldLimit bounds one field. Decoding refuses more.
type fieldLimit struct {
	count    uint16 // of a repeated field or map: elements
	size     int    // of bytes or text: bytes of one element
	together bool   // size holds for all elements together
}

func count(n uint16) fieldLimit { return fieldLimit{count: n} }
func size(n int) fieldLimit     { return fieldLimit{size: n} }

// each bounds a repeated field of bytes or text: n elements of so many bytes.
func each(n uint16, bytes int) fieldLimit { return fieldLimit{count: n, size: bytes} }

// fieldLimits has an entry for each field of variable length, and for no other.
// The limits are those that the definitions of the messages state. What a node
// writes for itself, a Record and what stands in it, has room to spare: a limit
// there must never make a task unreadable.
var fieldLimits = map[string]fieldLimit{
	"Message.id":              size(64),
	"Message.payload":         size(MaxFrame),
	"Message.metadata":        count(16),
	"MetadataEntry.key":       size(maxWord),
	"MetadataEntry.value":     size(MaxReason),
	"Message.signature":       size(maxSignature),
	"Envelope.header":         size(MaxHeader),
	"Envelope.body":           size(MaxSealed),
	"Envelope.slot":           size(maxSlot),
	"Envelope.path":           size(maxPath),
	"Envelope.signature":      size(maxSignature),
	"Ack.refusals":            count(MaxGroup),
	"Ack.signature":           size(maxSignature),
	"Refusal.detail":          size(maxDetail),
	"Hello.addrs":             each(maxAddrs, maxAddr),
	"Hello.boot_id":           size(maxID),
	"Hello.software":          size(maxWord),
	"Hello.refusal":           size(MaxReason),
	"Hello.features":          each(maxFeatures, maxName),
	"Signed.details":          size(maxDetails),
	"Signed.signature":        size(maxSignature),
	"Signed.signer":           size(maxKeyBytes),
	"MemberDetails.mesh":      size(maxID),
	"MemberDetails.peer":      size(maxKeyBytes),
	"MemberDetails.name":      size(maxName),
	"MemberDetails.roles":     each(16, maxName),
	"MemberDetails.serial":    size(maxID),
	"KeyDetails.peer":         size(maxKeyBytes),
	"KeyDetails.public":       size(maxSlot),
	"KeyDetails.key_id":       size(8),
	"Receipt.statement":       size(2 * StatementSize),
	"Receipt.path":            size(maxPath),
	"Receipt.signature":       size(maxSignature),
	"Receipts.receipts":       count(MaxGroup),
	"Cancel.task":             size(maxID),
	"Cancel.reason":           size(MaxReason),
	"JoinRequest.ticket_id":   size(8),
	"JoinRequest.proof":       size(maxDigest),
	"JoinRequest.name":        size(maxName),
	"JoinRequest.addrs":       each(maxAddrs, maxAddr),
	"JoinReply.refusal":       size(MaxReason),
	"JoinReply.peers":         count(maxPeers),
	"JoinReply.root":          size(maxKeyBytes),
	"KnownPeer.addrs":         each(maxAddrs, maxAddr),
	"OfferReply.detail":       size(maxDetail),
	"Chunk.data":              size(MaxChunk),
	"Chunk.sha256":            size(maxDigest),
	"ChunkReply.detail":       size(maxDetail),
	"Content.kind":            size(MaxKind),
	"Content.queue":           size(maxWord),
	"Content.agent":           size(maxWord),
	"Content.namespace":       size(maxWord),
	"Content.reply_to":        size(maxText),
	"Content.idempotency_key": size(MaxKey),
	"Content.ordering_key":    size(MaxKey),
	"Content.content_type":    size(maxText),
	"Content.sender_agent":    size(maxWord),
	"Content.receiver_agent":  size(maxWord),
	"Content.message_type":    size(maxWord),
	"Content.parent":          size(maxID),
	"Content.run":             size(maxWord),
	"Content.step":            size(maxWord),
	"Content.redrive_of":      size(maxID),
	"Content.traceparent":     size(maxWord),
	"Content.args":            {count: 256, size: MaxArgs, together: true},
	"Content.body":            size(MaxInlineBody),
	"Content.body_digest":     size(maxDigest),
	"Content.attachments":     count(64),
	"Content.labels":          count(maxLabels),
	"Content.on_dead":         size(16),
	"Attachment.name":         size(maxText),
	"Attachment.digest":       size(maxDigest),
	"Attachment.content_type": size(maxText),
	"LabelsEntry.key":         size(maxWord),
	"LabelsEntry.value":       size(maxText),
	"Outcome.boot_id":         size(maxID),
	"Outcome.reason":          size(MaxReason),
	"Outcome.stderr":          size(MaxStderr),
	"Outcome.body":            size(MaxInlineBody),
	"Outcome.body_digest":     size(maxDigest),
	"Outcome.content_type":    size(maxText),
	"Outcome.attempts":        count(MaxAttempts),
	"Outcome.events":          count(16),
	"Outcome.receipts":        count(2 * MaxAttempts),
	"Attempt.error":           size(maxDetail),
	"Event.node":              size(maxKeyBytes),
	"Event.cause":             size(maxCause),
	"Record.peer":             size(maxKeyBytes),
	"Record.kind":             size(MaxKind),
	"Record.events":           count(roomy),
	"Record.receipts":         count(roomy),
	"Record.history":          count(roomy),
	"Record.reason":           size(roomyText),
	"Record.stderr":           size(roomyText),
	"Record.result_digest":    size(maxDigest),
	"Record.result":           size(roomyText),
	"Record.result_blob":      size(roomyText),
	"Record.result_type":      size(maxText),
	"Record.idempotency_key":  size(MaxKey),
	"Record.ordering_key":     size(MaxKey),
	"Record.redrive_of":       size(maxID),
	"Record.body_blob":        size(roomyText),
	"Record.boot_id":          size(maxID),
	"Record.traceparent":      size(maxWord),
	"Record.request_digest":   size(maxDigest),
	"Record.labels":           count(roomy),
	"Record.target":           size(roomyText),
	"Record.status":           size(maxWord),
	"Record.redriven_as":      size(maxWord),
	"Record.orphans":          count(roomy),
	"Record.on_dead":          size(maxWord),
	"Record.run":              size(maxWord),
	"Record.step":             size(maxWord),
	"Record.parent":           size(maxID),
	"Stored.key":              size(maxKeyBytes),
}

// Limits of what only the node itself writes: an element count, and bytes.
const (
	roomy     = 1 << 10
	roomyText = 64 << 10
)
