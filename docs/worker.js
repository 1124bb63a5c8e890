// Pages opened from a folder may have no workers: there the search runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true })
      document.body.append(frame)
    }

    async start(inside, url) {
      const load = source =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: source, onload: done, onerror: failed })
          inside.document.body.append(script)
        })
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...sources) => {
        for (const source of sources) await load(new URL(source, url))
      }
      await load(url)
      this.deliver = data => inside.dispatchEvent(new MessageEvent("message", { data }))
      this.waiting.forEach(this.deliver)
    }

    postMessage(data) {
      this.deliver ? this.deliver(data) : this.waiting.push(data)
    }
  }
