// The search runs in a worker, which browsers refuse to pages from disk: there a hidden frame takes its place.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((ready) => {
        frame.onload = () => {
          const inside = frame.contentWindow, script = inside.document.createElement("script");
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.src = url;
          script.onload = () => ready(inside);
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
