// A page from file:// may not start a worker. This class runs the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = () => {
        for (const data of this.waiting) this.send(data)
        this.waiting = null
      }
      frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.send(data)
    }
    send(data) {
      this.inner.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
