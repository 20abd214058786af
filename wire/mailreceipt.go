package wire

import "time"

// A MailReceipt is what the node of a box has signed about one mail: that it has the letter, on
// disk. Whoever has the key of that node, which its id is, can verify the proof alone.
type MailReceipt struct {
	Mail     string    `json:"mail" doc:"id of the mail"`
	Box      string    `json:"box" doc:"the box, as its node names it"`
	Digest   string    `json:"digest" doc:"of the letter as it was sent, sha256:HEX"`
	Origin   string    `json:"origin" doc:"the node that sent it"`
	OriginID string    `json:"origin_id"`
	Node     string    `json:"node" doc:"the node of the box, which has signed"`
	NodeID   string    `json:"node_id"`
	Time     time.Time `json:"time" doc:"when it was stated, by the clock of the node of the box"`
	Number   string    `json:"number,omitempty" doc:"of the mail in the chain of its class: CLASS.START.NUMBER; absent: it was sent on the node of the box"`
	Proof    string    `json:"proof" doc:"statement, Merkle path and signature, in base64"`
	Letter   []byte    `json:"letter,omitempty" doc:"the letter, whose SHA-256 is the digest"`
	Verified bool      `json:"verified" doc:"the node that was asked has verified the proof"`
	Problem  *Note     `json:"problem,omitempty" doc:"why it is not valid"`
}
