package transport

// HalfOpen returns how many connections had no hello yet.
func (t *Transport) HalfOpen() (n int) {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	for _, c := range t.peers.conns {
		if !c.greeting.done.Load() {
			n++
		}
	}
	return n
}
