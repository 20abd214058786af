package proto

// A Contact is a peer that may be dialed.
type Contact struct {
	Peer   PeerID
	Addrs  []string // multiaddrs without the peer's id
	Relays []PeerID // where the peer has reservations, as it announced
}
