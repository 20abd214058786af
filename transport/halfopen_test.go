package transport

// HalfOpen returns how many connections had no hello yet.
func (t *Transport) HalfOpen() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		if !c.helloDone.Load() {
			n++
		}
	}
	return n
}
